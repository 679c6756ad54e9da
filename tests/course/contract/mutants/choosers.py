"""Stages that choose their tokens in the step, and choose wrong."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

import torch

from course.contract.making import copy_of
from course.contract.small_models import prompts_of
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from stages import FusedStep

from .demonstrations import demonstration
from .mutant import Mutant, by_hand, edit

NAMED = "chooses_as_sample"


@demonstration
def chooses(stage_class, *wishes: dict[str, float]) -> None:
    """Tokens of each request, beside those that `sample` chooses from the logits of another stage."""
    stage, plain = (cls(copy_of("gpt2", "cpu"), num_blocks=16) for cls in (stage_class, FusedStep))
    prompts = prompts_of([3 + 4 * i for i in range(len(wishes))], 61)
    seqs, twins = (
        [Sequence(list(p), SamplingParams(max_tokens=9, **w)) for p, w in zip(prompts, wishes, strict=True)]
        for _ in range(2)
    )
    chosen, logits = stage.first_tokens(seqs), torch.stack([plain.prefill(twin) for twin in twins])
    for _ in range(5):
        right = sample(logits, twins)
        assert chosen == right, f"{chosen} chosen, {right} are right"
        for seq, twin, token in zip(seqs, twins, right, strict=True):
            seq.append(token)
            twin.append(token)
        chosen, logits = stage.next_tokens(seqs), plain.decode(twins)


GREEDY, SEEDED = {"temperature": 0.0}, {"temperature": 2.0, "seed": 7}
FILTERED = {"temperature": 2.0, "seed": 8, "top_k": 2}


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
    by_hand(Forgetful, chooses(GREEDY, SEEDED), NAMED),
    by_hand(OnlyDecodes, chooses(SEEDED, SEEDED), NAMED),
    edit(FusedStep, "the row of the first token", '[1 : len(group) + 1] - 1', '[: len(group)]', chooses(GREEDY, GREEDY),
         NAMED, "one_sequence", "mixed_lengths"),
    edit(FusedStep, "no seeds", "if generator := generator_of(seq, probs.device):", "if generator := None:",
         chooses(SEEDED, SEEDED), NAMED),
    edit(FusedStep, "one row's wishes for all", "temperature, top_k, top_p = self.wishes_on_device[:, : len(params), None]",
         "temperature, top_k, top_p = self.wishes_on_device[:, :1, None].expand(-1, len(params), -1)",
         chooses(SEEDED, GREEDY), NAMED),
    edit(FusedStep, "no top-k", "torch.where(has_filter, keep_top(probs, top_k.long(), top_p), probs)", "probs",
         chooses(FILTERED, FILTERED), NAMED),
    edit(FusedStep, "the largest quotient of another", "torch.where(is_drawn, exponential_race", "torch.where(~is_drawn, exponential_race",
         chooses(GREEDY, SEEDED), NAMED),
    edit(FusedStep, "top_k modulo the vocabulary", "min(p.top_k, self.config.vocab_size)", "p.top_k % self.config.vocab_size",
         chooses(*[SEEDED | {"temperature": 9.0, "top_k": 98, "seed": seed} for seed in range(3)]), NAMED),
)  # fmt: skip
