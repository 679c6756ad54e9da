"""Steps that read what an older batch left behind, count too early, or write into the caller's model."""

from __future__ import annotations

import torch

from roseinfer.stage import Stage
from stages import FusedStep, Graphs, NaiveCat, PackedWeights
from stages.s11_fused_step import read
from stages.s13_graphs import advance

from .mutant import by_hand, edit


def stale_starts(base: type[Stage]) -> type[Stage]:
    class StaleStarts(base):
        """Where each sequence begins in a step is kept for as long as sequences and tokens are as many."""

        def write_tables(self, seqs, num_new):
            attend = super().write_tables(seqs, num_new)
            self.kept = getattr(self, "kept", {})
            starts = self.inputs_on_host["query_start"][: len(seqs) + 1]
            starts[:] = self.kept.setdefault((len(seqs), sum(num_new)), starts.copy())
            return attend

    return StaleStarts


class LastBatchFirst(FusedStep):
    """Prompts that need several flat batches are run from the last one on, and so are their tokens."""

    def groups(self, seqs):
        return super().groups(seqs)[::-1]


class LeftoverPadding(Graphs):
    """Padding is written when the bucket is another one than in the last step."""

    last_bucket = None

    def write_padding(self, num_seqs, bucket):
        if bucket != self.last_bucket:
            super().write_padding(num_seqs, bucket)
        self.last_bucket = bucket


class CountsBeforeItReads(Graphs):
    """The step counts when it was replayed, before its tokens are on the host."""

    @torch.inference_mode()
    def next_tokens(self, seqs):
        logits, tokens = self.replay(seqs)
        advance(seqs)
        return read(self.choose(logits, seqs) if any(seq.params.temperature > 0 for seq in seqs) else tokens)


class RoundsYourWeights(NaiveCat):
    def __init__(self, model, **sizes):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(weight.bfloat16())
        super().__init__(model, **sizes)


MUTANTS = (
    by_hand(stale_starts(FusedStep), "prompts_together"),
    by_hand(LastBatchFirst, "prompts_together"),
    by_hand(LeftoverPadding, "padding_touches_nothing"),
    by_hand(RoundsYourWeights, "leaves_your_model"),
    edit(PackedWeights, "packs the caller's model",
         "twin = empty_model(model.config)\n        twin.load_state_dict(model.state_dict(), assign=True)",
         "twin = model", "leaves_your_model"),
    edit(FusedStep, "a failed choice counts", "                seq.num_cached_tokens -= 1\n", "                pass\n",
         "failed_choice"),
    edit(FusedStep, "NaN gives a token", "return torch.where(largest.isfinite(), tokens, -1)", "return tokens",
         "failed_choice"),
    by_hand(CountsBeforeItReads, "failed_choice"),
)  # fmt: skip
