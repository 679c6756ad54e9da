"""Stages that an error, or a call made again, leaves other than they were."""

from __future__ import annotations

from right_stage import Right, RightStep

from stages import BlockTable

from .mutant import by_hand


class GrowsInTheStep(Right):
    """The step appends as it goes; an error after it leaves the token there, and it is appended again."""

    def build(self, seqs):
        return GrowingStep([self.caches[seq.seq_id] for seq in seqs])

    def append(self, seqs, step): ...


class GrowingStep(RightStep):
    def __call__(self, layer, q, k, v):
        out = super().__call__(layer, q, k, v)
        for i, cache in enumerate(self.caches):
            cache[layer] = self.grown(i, layer)
        return out


class GrowsLayerByLayer(Right):
    """An error between two layers of append leaves the first ones longer."""

    def append(self, seqs, step):
        for layer in range(len(step.new)):
            for i, cache in enumerate(step.caches):
                cache[layer] = step.grown(i, layer)


class HalfAPrompt(BlockTable):
    """A prefill that fails leaves its sequence held."""

    def prefill(self, seq):
        free, self.free = self.free, lambda seq: None
        try:
            return super().prefill(seq)
        finally:
            self.free = free


MUTANTS = (
    by_hand(GrowsInTheStep, "failed_steps"),
    by_hand(GrowsLayerByLayer, "errors_anywhere"),
    by_hand(HalfAPrompt, "failed_steps"),
)
