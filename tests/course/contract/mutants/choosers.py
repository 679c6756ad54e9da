"""Stages that choose their tokens in the step, and choose wrong."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from stages import FusedStep

from .mutant import Mutant, by_hand, edit

NAMED = "chooses_as_sample"


class Forgetful(FusedStep):
    """A batch that begins with a greedy request is greedy."""

    def choose(self, logits, seqs):
        if seqs[0].params.temperature == 0:
            return logits.argmax(-1)
        return super().choose(logits, seqs)


class OnlyDecodes(FusedStep):
    """Its first tokens are greedy, whatever was asked for."""

    def first_tokens(self, seqs):
        return [int(self.prefill(seq).argmax()) for seq in seqs]


MUTANTS: tuple[Mutant, ...] = (
    by_hand(Forgetful, NAMED),
    by_hand(OnlyDecodes, NAMED),
    edit(FusedStep, "no seeds", "if generator := generator_of(seq, probs.device):", "if generator := None:", NAMED),
    edit(FusedStep, "one row's wishes for all", "temperature, top_k, top_p = self.wishes_on_device[:, : len(params), None]",
         "temperature, top_k, top_p = self.wishes_on_device[:, :1, None].expand(-1, len(params), -1)", NAMED),
    edit(FusedStep, "no top-k", "torch.where(has_filter, keep_top(probs, top_k.long(), top_p), probs)", "probs", NAMED),
    edit(FusedStep, "top_k modulo the vocabulary", "min(p.top_k, self.config.vocab_size)", "p.top_k % self.config.vocab_size", NAMED),
)  # fmt: skip
