"""Stages that an error, or a call made again, leaves other than they were."""

from __future__ import annotations

import torch

from roseinfer.stage import Stage
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
    """Each sequence counts as its token is written: behind an error, the first ones have counted."""

    def append(self, seqs, step):
        for i, seq in enumerate(seqs):
            for layer, (k, v) in enumerate(step.presents):
                self.append_token(seq, layer, k[i, :, -1], v[i, :, -1])
            seq.num_cached_tokens += 1
        for seq in seqs:
            seq.num_cached_tokens -= 1


class Contiguous(Stage):
    """K and V of a sequence and layer in one tensor [H_kv, T, D], which a step makes longer by its token."""

    def __init__(self, model, **sizes):
        super().__init__(model, **sizes)
        self.caches = {}

    def write_prompt(self, seq, layer, k, v):
        self.caches[seq.seq_id, layer] = [k.transpose(0, 1).clone(), v.transpose(0, 1).clone()]

    def build(self, seqs):
        def step(layer, q, k, v):
            rows = []
            for i, seq in enumerate(seqs):
                keys, values = self.grown(seq, layer, k[i, :, None], v[i, :, None])
                rows.append(
                    torch.nn.functional.scaled_dot_product_attention(q[i, :, None], keys, values, enable_gqa=True)
                )
            self.new[layer] = k, v
            return torch.stack(rows)[:, :, 0]

        self.new = {}
        return step

    def grown(self, seq, layer, k, v):
        keys, values = self.caches[seq.seq_id, layer]
        return torch.cat([keys, k], 1), torch.cat([values, v], 1)

    def append(self, seqs, step):
        grown = {
            (seq.seq_id, layer): self.grown(seq, layer, k[i, :, None], v[i, :, None])
            for layer, (k, v) in self.new.items()
            for i, seq in enumerate(seqs)
        }
        self.caches |= grown

    def free(self, seq):
        super().free(seq)
        for layer in range(self.config.num_layers):
            self.caches.pop((seq.seq_id, layer), None)


class GrowsInTheStep(Contiguous):
    """The step appends as it goes; an error behind it leaves the token there, and it is appended again."""

    def grown(self, seq, layer, k, v):
        self.caches[seq.seq_id, layer] = super().grown(seq, layer, k, v)
        return self.caches[seq.seq_id, layer]

    def append(self, seqs, step): ...


class GrowsLayerByLayer(Contiguous):
    """An error between two layers of append leaves the first ones longer."""

    def append(self, seqs, step):
        for layer, (k, v) in self.new.items():
            for i, seq in enumerate(seqs):
                self.caches[seq.seq_id, layer] = self.grown(seq, layer, k[i, :, None], v[i, :, None])


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
