"""Wrong books: the block tables and the template of prefill, decode and free, each with one slip in its source."""

# ruff: noqa: E501  (source is quoted in one piece)

from __future__ import annotations

from roseinfer.blocks import OutOfBlocks
from stages import NaiveCat

from .demonstrations import dies_midway, run, script
from .mutant import by_hand, edit_blocks, edit_template

PREEMPTED = script("+a9 a -a +a a -a +a a")
REFUSED = script("+a4 +b8 +c4 ?ab +d4", num_blocks=5)  # the refused step needs two blocks, one is left: d's
FREED = ("blocks_come_back", "freeing_twice", "batch_grows_and_shrinks")
POOL = ("pool_exhausted",)
FITS = ("just_fits", "last_position", "never_fits")


class LosesABlockAPreemption(NaiveCat):
    """A sequence that comes back with its output is given a block too many, which is never freed."""

    def prefill(self, seq):
        if seq.output_ids and self.num_free_blocks > self.tables.blocks_for(len(seq)):
            self.tables.reserve({-1 - seq.seq_id: self.block_size})
        return super().prefill(seq)


class LosesTheLastBlock(NaiveCat):
    """A free that keeps the block that was still empty."""

    def free(self, seq):
        if seq.num_cached_tokens % self.block_size == 0:
            for layer in range(self.config.num_layers):
                self.tables.of(seq.seq_id, layer).pop()
        super().free(seq)


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


class OneLayerFreed(NaiveCat):
    def free(self, seq):
        kept = self.tables.of(seq.seq_id, 0)[1:]
        super().free(seq)
        for block in kept:
            self.tables._free[1].remove(block)


MUTANTS = (
    by_hand(LosesABlockAPreemption, PREEMPTED, "prefilled_again"),
    by_hand(LosesTheLastBlock, script("+a4 +b9 -b +b9 b"), *FREED),
    by_hand(ReservesOneByOne, REFUSED, *POOL),
    by_hand(ReservesBeforeItLooks, REFUSED, *POOL, "misuse"),
    by_hand(HoldsWhatIsRefused, script("+a9 ?+b9 -a +a17", num_blocks=5), *POOL),
    by_hand(OneLayerFreed, script("+a9 a -a +a9 a"), *FREED),
    edit_blocks("a free that keeps one", "in reversed(blocks)", "in reversed(blocks[1:])",
                PREEMPTED, *FREED),
    edit_blocks("a free that gives one twice", "in reversed(blocks)", "in blocks + blocks[:1]",
                script("+a1 -a +b1 +c1 b c"), *FREED),
    edit_blocks("one block too many at an edge", "return -(-num_tokens // self.block_size)",
                "return num_tokens // self.block_size + 1", script("+a16 ", num_blocks=4), *FITS, *POOL),
    edit_blocks("one block too few", "return -(-num_tokens // self.block_size)",
                "return max(1, num_tokens // self.block_size)", script("+a6 a"), "blocks_come_back", "block_edges", "small_blocks"),
    edit_blocks("> for >=", "if needed > self.num_free:", "if needed >= self.num_free:",
                script("+a16", num_blocks=4), *FITS, *POOL, "can_be_made"),
    edit_blocks("a pool short by one", "list(reversed(range(num_blocks)))", "list(reversed(range(num_blocks - 1)))",
                script("+a16", num_blocks=4), "can_be_made"),
    edit_blocks("reserves for all but the first", "needed = sum(max(0, n) for n in missing.values())",
                "needed = sum(max(0, n) for n in list(missing.values())[:1])", script("+a4 +b4 ?ab -a b", num_blocks=3),
                *POOL),
    edit_template("no length of its own", "return [seq.num_cached_tokens for seq in seqs]",
                  "return [max(seq.num_cached_tokens for seq in seqs) for _ in seqs]", run([3, 9], 9), "mixed_lengths"),
    edit_template("nothing freed after an error", "if seq.seq_id in self.tables:\n                    self.free(seq)\n            raise",
                  "pass\n            raise", script("+a4 !+b4 -a +c30", num_blocks=8), "errors_free_everything", "failed_steps"),
    edit_template("one token early", "longest - 1)  # the last", "longest)  # the last",
                  run([16], 0, num_blocks=4, block_size=4), *FITS),
    edit_template("one position too few", "if longest > max_model_len", "if longest >= max_model_len", run([44], 0, "groups of 3"), *FITS),
    edit_template("two positions too many", "if longest > max_model_len", "if longest > max_model_len + 2",
                  dies_midway(), *FITS),
    edit_template("builds in another order", "            step = self.build(seqs)",
                  "            step = self.build(seqs[::-1])",
                  run([3, 9], 9), "mixed_lengths", "equal_lengths", "fits_the_seam"),
    edit_template("the first token alone of a prompt", "positions = torch.arange(len(seq)", "positions = torch.zeros(len(seq), dtype=torch.long",
                  run([3, 9], 9), "one_sequence"),
    edit_template("the logits of the first token", "attend)[-1:])[0]", "attend)[:1])[0]", run([3, 9], 2), "one_sequence"),
)  # fmt: skip
