"""Lesson 06: wrong answers are told what is wrong; rows and builds are counted as the stages really make them."""

from __future__ import annotations

import itertools

import pytest
import torch
from wrong_answers import assert_refused, wrong_answers

from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams
from roseinfer.teach import check, compare_builds, draw_rows_built, table_steps
from roseinfer.teach.exercises.lesson06 import IDS, SOUND, UNSOUND, RowCache
from stages import BlockTable, BlockTableCache

BLOCK_LISTS = [list(blocks) for n in (1, 2, 3) for blocks in itertools.permutations(IDS, n)]


def search(new_cache, block_lists=BLOCK_LISTS):
    for first, second in itertools.product(block_lists, repeat=2):
        cache = new_cache()
        cache.row(first)
        if cache.row(second) != second:
            return first, second
    return None


@wrong_answers(
    "06.1",
    {
        "all rows": (lambda L, lengths, size: L * len(lengths), "8: that is every row"),
        "a step too early": (
            lambda L, lengths, size: L * sum((n + 1) % size == 0 for n in lengths),
            "one slot left still takes",
        ),
        "no layers": (
            lambda L, lengths, size: sum(n % size == 0 for n in lengths),
            "each of them has a row in every layer",
        ),
        "all blocks": (lambda L, lengths, size: L * sum(n // size for n in lengths), "4 is too high"),
        "one sequence at an edge for all": (
            lambda L, lengths, size: L * any(n % size == 0 for n in lengths),
            "lengths [15, 16, 31, 32, 47]",
        ),
        "printed": (lambda L, lengths, size: print(L), "is a `return` missing?"),
    },
)
def test_wrong_rows_of_a_step(answer, message):
    assert_refused("06.1", answer, message)


@wrong_answers(
    "06.2",
    {
        "never a pair": (lambda new_cache: None if new_cache() else None, "key = the length: you found no pair"),
        "one pair for every key": (
            lambda new_cache: ([0], [1]),
            "key = the last id: after row([0]), row([1]) is [1], and that is right",
        ),
        "an id twice": (lambda new_cache: ([0, 0], [1, 1]), "[0, 0] names a block twice"),
        "an id out of range": (lambda new_cache: ([0], [7]), "[7] is no list of 1 to 3 ids from 0 to 4"),
        "one block list": (lambda new_cache: [0], "expected a pair of block lists or None, got [0]"),
        "lists of three left out": (
            lambda new_cache: search(new_cache, [b for b in BLOCK_LISTS if len(b) < 3]),
            "key = (length, first id, last id): you found no pair",
        ),
        "equal lengths alone": (
            lambda new_cache: search(new_cache, [b for b in BLOCK_LISTS if len(b) == 3]),
            "key = the ids as the digits of a number: you found no pair",
        ),
        "a pair for a sound key": (lambda new_cache: search(new_cache) or ([0], [1]), "key = all ids: after row([0])"),
    },
)
def test_wrong_searches(answer, message):
    assert_refused("06.2", answer, message)


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_key_has_a_pair(name):
    assert search(lambda: RowCache(UNSOUND[name])) is not None


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_key_has_none(name):
    assert search(lambda: RowCache(SOUND[name])) is None


class Remembers(BlockTableCache):
    """Leaves the buffer as it is while `state` is what it was; the subclasses get it wrong in their own ways."""

    in_buffer = None

    def state(self, seqs):
        raise NotImplementedError

    def build_block_tables(self, seqs, out):
        state = self.state(seqs)
        if state != self.in_buffer:
            super().build_block_tables(seqs, out)
            self.in_buffer = state


class ByVersions(Remembers):
    def state(self, seqs):
        return [self.tables.version(seq.seq_id) for seq in seqs]


class ByTheBatch(Remembers):
    def state(self, seqs):
        return [seq.seq_id for seq in seqs]


class ByTheSet(Remembers):
    def state(self, seqs):
        return {self.tables.version(seq.seq_id) for seq in seqs}


class ByTheNewest(Remembers):
    def state(self, seqs):
        return max(self.tables.version(seq.seq_id) for seq in seqs)


class ByTheEnginesOwnLists(Remembers):
    """Keeps the lists themselves, which grow in place and so are always equal to themselves."""

    def state(self, seqs):
        return [self.tables.of(seq.seq_id, 0) for seq in seqs]


class ByThePostsKey(Remembers):
    def state(self, seqs):
        return [(seq.seq_id, len(b := self.tables.of(seq.seq_id, 0)), b[-1]) for seq in seqs]


class ByRowsBuilt(BlockTableCache):
    """Skips the stack when no row had to be built, and forgets to ask who is in the batch."""

    def build_block_tables(self, seqs, out):
        before = self.rows_built
        rows = [self.rows_of(seq) for seq in seqs]
        if self.rows_built != before:
            torch.stack(rows, dim=1, out=out)


class CopiesRow(BlockTableCache):
    def build_block_tables(self, seqs, out):
        for i, seq in enumerate(seqs):
            out[:, i].copy_(self.rows_of(seq))


class BuildsAllOnAChange(ByVersions):
    def build_block_tables(self, seqs, out):
        if self.state(seqs) != self.in_buffer:
            self.cached_rows.clear()
        super().build_block_tables(seqs, out)


@wrong_answers(
    "06.3",
    {
        "by the batch": (
            ByTheBatch,
            "when a sequence takes a new block (its list grows in place), row 0 of layer 0 begins [0, 1, 0]",
        ),
        "by the engine's own lists": (
            ByTheEnginesOwnLists,
            "when a sequence takes a new block (its list grows in place), row 0 of layer 0",
        ),
        "by the set of versions": (ByTheSet, "when the batch comes in another order, row 0"),
        "by the newest version": (ByTheNewest, "when the batch comes in another order, row 0"),
        "by the rows built": (ByRowsBuilt, "when the batch comes in another order, row 0"),
        "as stage 05 does it": (BlockTable, "a step on which nothing changes builds 8 rows, the budget is 0"),
        "as stage 06 does it": (BlockTableCache, "1 aten::stack too many (1, the budget is 0)"),
        "rows copied one by one": (CopiesRow, "4 aten::copy_ too many (4, the budget is 0)"),
        "all rows built on a change": (
            BuildsAllOnAChange,
            "one of 3 sequences takes a new block, and 6 rows are built; the budget is 2",
        ),
        "the class's name": ("OnlyWhenChanged", "expected a subclass of BlockTableCache"),
    },
)
def test_wrong_ways_to_build_nothing(small, answer, message):
    assert_refused("06.3", answer, message, model=small)


def test_versions_are_a_right_way(small):
    assert check("06.3", ByVersions, model=small)


def test_the_posts_key_needs_the_sequence_to_come_back(small):
    verdict = check("06.3", ByThePostsKey, model=small)
    assert not verdict and "freed and prefilled again into other blocks" in repr(verdict)


# The helpers


@pytest.mark.parametrize("stage_class", [BlockTable, BlockTableCache], ids=lambda cls: cls.name)
def test_rows_without_a_model_are_those_of_real_steps(small, stage_class):
    lengths, steps = [5, 14, 16], 12
    stage = stage_class(small, num_blocks=12, block_size=8)
    seqs = begin(stage, [[3] * n for n in lengths], SamplingParams(max_tokens=steps + 2, ignore_eos=True))
    padded_row, real = stage.padded_row, []

    def counted(blocks):
        real[-1] += 1
        return padded_row(blocks)

    stage.padded_row = counted
    for _ in range(steps):
        real.append(0)
        decode_step(stage, seqs)
    assert table_steps(stage_class, small, lengths, steps, block_size=8) == real


def test_rows_of_the_cache_come_at_the_edges(small):
    layers = small.config.num_layers
    together = table_steps(BlockTableCache, small, [10] * 4, steps=128)
    staggered = table_steps(BlockTableCache, small, [10, 20, 30, 40], steps=128)
    assert together[0] == together[54] == together[118] == 4 * layers
    assert sum(together) == sum(staggered) == 4 * layers * 3
    assert max(staggered[1:]) == layers


def test_a_run_beyond_the_models_positions_is_refused(small):
    with pytest.raises(ValueError, match="max_model_len=192, got 193 tokens"):
        table_steps(BlockTable, small, [100], steps=93)


def test_builds_beside_each_other(small):
    df = compare_builds([BlockTable, BlockTableCache], small, batch_sizes=[3], steps=2).df
    assert df["step"].tolist() == ["away from an edge"] * 2 + ["at an edge"] * 2
    layers = small.config.num_layers
    assert df["rows built"].tolist() == [3 * layers, 0, 3 * layers, 3 * layers]
    assert df["copies"].tolist() == [layers, 0, layers, 0] and df["stacks"].tolist() == [0, 1, 0, 1]
    assert set(df["table bytes"]) == {layers * 3 * 3 * 4}  # 192 positions are 3 blocks
    with pytest.raises(ValueError, match="steps must be 1 to 60"):
        compare_builds([BlockTable], small, batch_sizes=[3], steps=61)


def test_the_picture_says_when_rows_are_built():
    picture = draw_rows_built({"together": [8, 0, 8, 0], "apart": [8, 4, 0, 4]})
    assert "together: 16 rows in 4 steps, 8 of them in the first; after it at most 8 in a step, and none in 2." in repr(
        picture
    )
    assert "apart: 16 rows in 4 steps, 8 of them in the first; after it at most 4" in repr(picture)
    with pytest.raises(ValueError, match="equal length"):
        draw_rows_built({"a": [1], "b": [1, 2]})
