"""Wrong books: the block tables and the template of prefill, decode and free, each with one slip in its source."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from roseinfer.blocks import OutOfBlocks
from stages import NaiveCat

from .mutant import by_hand, edit_blocks, edit_template


class LosesABlockAPreemption(NaiveCat):
    """A sequence that comes back with its output is given a block too many, which is never freed."""

    def prefill(self, seq):
        if seq.output_ids and self.num_free_blocks > self.tables.blocks_for(len(seq)):
            self.tables.reserve({-1 - seq.seq_id: self.block_size})
        return super().prefill(seq)


class ReservesOneByOne(NaiveCat):
    """The sequences before the one that finds no block have theirs already."""

    def decode(self, seqs):
        self._check_decodable(seqs)
        for seq in seqs:
            self.tables.reserve({seq.seq_id: len(seq)})
        return super().decode(seqs)


class ReservesBeforeItLooks(NaiveCat):
    """A wrong call has taken its blocks when it is refused."""

    def decode(self, seqs):
        for seq in seqs:
            if self.holds(seq):
                self.tables.reserve({seq.seq_id: min(seq.num_cached_tokens + 1, self.config.max_model_len)})
        return super().decode(seqs)


class HoldsWhatIsRefused(NaiveCat):
    """A prompt that the pool cannot take keeps the blocks that there were."""

    def prefill(self, seq):
        try:
            return super().prefill(seq)
        except OutOfBlocks:
            self.tables.reserve({seq.seq_id: self.num_free_blocks * self.block_size})
            raise


MUTANTS = (
    by_hand(LosesABlockAPreemption, "prefilled_again"),
    by_hand(ReservesOneByOne, "pool_exhausted"),
    by_hand(ReservesBeforeItLooks, "misuse"),
    by_hand(HoldsWhatIsRefused, "pool_exhausted"),
    edit_blocks("a free that keeps one", "in reversed(blocks)", "in reversed(blocks[1:])", "blocks_come_back"),
    edit_blocks("a free that gives one twice", "in reversed(blocks)", "in blocks + blocks[:1]", "blocks_come_back"),
    edit_blocks("one block too many at an edge", "return -(-num_tokens // self.block_size)", "return num_tokens // self.block_size + 1",
                "just_fits"),
    edit_blocks("> for >=", "if needed > self.num_free:", "if needed >= self.num_free:", "last_position"),
    edit_blocks("a pool short by one", "list(reversed(range(num_blocks)))", "list(reversed(range(num_blocks - 1)))", "can_be_made"),
    edit_blocks("reserves for all but the first", "needed = sum(max(0, n) for n in missing.values())",
                "needed = sum(max(0, n) for n in list(missing.values())[:1])", "pool_exhausted"),
    edit_template("nothing freed after an error", "if seq.seq_id in self.tables:\n                    self.free(seq)\n            raise",
                  "pass\n            raise", "errors_free_everything"),
    edit_template("one token early", "longest - 1)  # the last", "longest)  # the last", "just_fits"),
    edit_template("one position too few", "if longest > max_model_len", "if longest >= max_model_len", "just_fits"),
    edit_template("two positions too many", "if longest > max_model_len", "if longest > max_model_len + 2", "just_fits"),
    edit_template("builds in another order", "            step = self.build(seqs)", "            step = self.build(seqs[::-1])",
                  "mixed_lengths"),
)  # fmt: skip
