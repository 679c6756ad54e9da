"""Owners of blocks: every block free once or counted right, after any order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from roseinfer.blocks import OutOfBlocks
from roseinfer.engine.block_manager import BlockManager

NUM_BLOCKS, BLOCK_SIZE, PLACES, MAX_BLOCKS = 9, 4, 4, 5


class Schedules(RuleBasedStateMachine):
    """Any order of reserve, promise, share and free, beside books that are kept in another way: lists alone."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(NUM_BLOCKS, BLOCK_SIZE, PLACES, MAX_BLOCKS)
        self.lengths: dict[int, int] = {}  # tokens that a sequence has blocks for
        self.ends: dict[int, int] = {}  # tokens that it was promised
        self.tables: dict[int, list[int]] = {}
        self.next_id = 100

    @rule(lengths=st.lists(st.integers(1, MAX_BLOCKS * BLOCK_SIZE), min_size=1, max_size=3))
    def reserve_new(self, lengths):
        if len(self.tables) + len(lengths) <= PLACES:
            self._reserve({self.next_id + i: n for i, n in enumerate(lengths)})
            self.next_id += len(lengths)

    @rule(data=st.data())
    def grow(self, data):
        grown = {i: data.draw(st.integers(n, MAX_BLOCKS * BLOCK_SIZE)) for i, n in self.lengths.items()}
        chosen = data.draw(st.sets(st.sampled_from(sorted(grown)))) if grown else ()
        self._reserve({i: grown[i] for i in chosen})

    def _reserve(self, wanted: dict[int, int]) -> None:
        held = {i: list(self.tables.get(i, [])) for i in wanted}
        missing = sum(max(0, -(-n // BLOCK_SIZE) - len(held[i])) for i, n in wanted.items())
        free = NUM_BLOCKS - len({block for table in self.tables.values() for block in table})
        if missing > free:
            with pytest.raises(OutOfBlocks, match=f"{missing} more blocks? .* {free} of num_blocks={NUM_BLOCKS}"):
                self.manager.reserve(wanted)
            return
        self.manager.reserve(wanted)
        for i, n in wanted.items():
            table = list(self.manager.of(i))
            assert table[: len(held[i])] == held[i], "blocks that a sequence holds stay where they are"
            assert len(table) == max(len(held[i]), -(-n // BLOCK_SIZE))
            self.tables[i], self.lengths[i] = table, max(n, self.lengths.get(i, 0))

    @rule(data=st.data(), end=st.integers(1, MAX_BLOCKS * BLOCK_SIZE))
    def promise(self, data, end):
        if self.tables:
            seq_id = data.draw(st.sampled_from(sorted(self.tables)))
            self.manager.promise(seq_id, end)
            self.ends[seq_id] = end

    @rule(data=st.data())
    def share(self, data):
        if self.tables and len(self.tables) < PLACES:
            table = self.tables[data.draw(st.sampled_from(sorted(self.tables)))]
            shared = table[: data.draw(st.integers(0, len(table)))]
            self.manager.share(self.next_id, shared)
            self.tables[self.next_id], self.lengths[self.next_id] = list(shared), len(shared) * BLOCK_SIZE
            self.next_id += 1

    @rule(data=st.data())
    def free(self, data):
        if self.tables:
            seq_id = data.draw(st.sampled_from(sorted(self.tables)))
            self.manager.free(seq_id)
            for books in (self.tables, self.lengths, self.ends):
                books.pop(seq_id, None)

    @invariant()
    def books_agree(self):
        self.manager.check()
        held = {block for table in self.tables.values() for block in table}
        owed = sum(max(0, -(-end // BLOCK_SIZE) - len(self.tables[i])) for i, end in self.ends.items())
        assert self.manager.num_free == NUM_BLOCKS - len(held)
        assert self.manager.num_unpromised == self.manager.num_free - owed
        assert self.manager.seq_ids == list(self.tables) and len(self.manager) == len(self.tables)
        assert {i: self.manager.of(i) for i in self.tables} == self.tables
        for i, table in self.tables.items():
            assert self.manager.table.ids[self.manager.table.held[i].row, : len(table)].tolist() == table


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_shared_block_is_free_when_its_last_table_goes():
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    manager.reserve({1: 8})
    manager.share(2, manager.of(1)[:1])
    manager.free(1)
    assert manager.num_free == 3
    manager.free(2)
    assert manager.num_free == 4


def test_what_nobody_holds_is_neither_freed_nor_shared():
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    with pytest.raises(KeyError):
        manager.free(7)
    with pytest.raises(AssertionError, match="a free block cannot be shared"):
        manager.share(1, [2])
    manager.check()


@pytest.mark.parametrize(
    "damage",
    [
        lambda m: m.pool.free.pop(),
        lambda m: m.pool.free.append(m.of(1)[0]),
        lambda m: m.pool.ref_counts.__setitem__(0, 2),
        lambda m: m.of(1).append(3),
        lambda m: m.table._free_rows.pop(),
        lambda m: m.table.ids.__setitem__((m.table.held[1].row, 0), 3),
        lambda m: setattr(m.table.held[1], "num_owed", 5),
    ],
)
def test_check_finds_books_that_are_wrong(damage):
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    manager.reserve({1: 8})
    manager.check()
    damage(manager)
    with pytest.raises(AssertionError):
        manager.check()
