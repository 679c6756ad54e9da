"""Stages that an error, or a call made again, leaves other than they were."""

from __future__ import annotations

import torch
from right_stage import Right, RightStep

from stages import BlockTable, NaiveCat, VectorizedGather

from .demonstrations import fails_anywhere, script
from .mutant import by_hand

AGAIN = ("failed_steps",)
ANYWHERE = ("errors_anywhere",)
FAILS = script("+a3 +b6 ab !ab ab*3")


class CountsFirst(NaiveCat):
    """The tokens count as cached when the step begins."""

    def build(self, seqs):
        step = super().build(seqs)
        for seq in seqs:
            seq.num_cached_tokens += 1
        return step

    def append(self, seqs, step):
        for seq in seqs:
            seq.num_cached_tokens -= 1
        super().append(seqs, step)


class CountsInAppend(NaiveCat):
    """Each sequence counts as its token is written: after an error, the first ones have counted."""

    def append(self, seqs, step):
        for i, seq in enumerate(seqs):
            for layer, (k, v) in enumerate(step.presents):
                self.append_token(seq, layer, k[i, :, -1], v[i, :, -1])
            seq.num_cached_tokens += 1
        for seq in seqs:
            seq.num_cached_tokens -= 1


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


class CountsItsOwn(VectorizedGather):
    """A write position of its own, moved on when the step is built."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.at = {}

    def write_prompt(self, seq, layer, k, v):
        super().write_prompt(seq, layer, k, v)
        self.at[seq.seq_id] = len(seq) - 1

    def build(self, seqs):
        for seq in seqs:
            self.at[seq.seq_id] += 1
        return super().build(seqs)

    def slot_mapping(self, seqs):
        places = [divmod(self.at[seq.seq_id], self.block_size) for seq in seqs]
        blocks = [[self.tables.of(seq.seq_id, layer)[-1] for seq in seqs] for layer in range(self.config.num_layers)]
        return torch.tensor(blocks), torch.tensor([slot for _, slot in places])


class Busy(NaiveCat):
    """A flag against two steps at once, left up by an error."""

    busy = False

    def decode(self, seqs):
        if self.busy:
            raise RuntimeError("a step is running")
        self.busy = True
        logits = super().decode(seqs)
        self.busy = False
        return logits


class BusyUntilRefused(NaiveCat):
    """The same, taken down by a refusal and not by what comes from outside."""

    busy = False

    def decode(self, seqs):
        assert not self.busy, "a step is running"
        try:
            self._check_decodable(seqs)
            self.busy = True
            logits = super().decode(seqs)
        except ValueError:
            self.busy = False
            raise
        self.busy = False
        return logits


class HalfAPrompt(BlockTable):
    """A prefill that fails leaves its sequence held."""

    def prefill(self, seq):
        free, self.free = self.free, lambda seq: None
        try:
            return super().prefill(seq)
        finally:
            self.free = free


MUTANTS = (
    by_hand(CountsFirst, FAILS, *AGAIN),
    by_hand(CountsInAppend, fails_anywhere, *ANYWHERE),
    by_hand(GrowsInTheStep, FAILS, *AGAIN),
    by_hand(GrowsLayerByLayer, fails_anywhere, *ANYWHERE),
    by_hand(CountsItsOwn, FAILS, *AGAIN, "pool_exhausted"),
    by_hand(Busy, FAILS, *AGAIN, "pool_exhausted", "misuse", "freeing_twice"),
    by_hand(BusyUntilRefused, FAILS, *AGAIN, "pool_exhausted", "errors_free_everything"),
    by_hand(HalfAPrompt, script("+a3 !+b6 -a +c24", num_blocks=6), *AGAIN, "errors_free_everything"),
)  # fmt: skip
