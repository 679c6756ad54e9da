"""Owners of blocks: what is shared, promised and refused. Any order of calls is in test_any_order.py."""

from __future__ import annotations

import pytest

from roseinfer.blocks import OutOfBlocks
from roseinfer.engine.block_manager import BlockManager

BLOCK_SIZE, PLACES, MAX_BLOCKS = 4, 4, 5


def test_a_shared_block_is_free_when_its_last_table_goes():
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    manager.reserve({1: 8})
    manager.share(2, manager.of(1)[:1])
    manager.free(1)
    assert manager.num_free == 3
    manager.free(2)
    assert manager.num_free == 4


def test_blocks_are_handed_out_to_all_or_to_none():
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    manager.reserve({1: 5})
    held = list(manager.of(1))
    with pytest.raises(OutOfBlocks, match="3 more blocks of 4 tokens are needed, 2 of num_blocks=4 are free: nothing"):
        manager.reserve({1: 9, 2: 8})
    assert manager.of(1) == held and manager.seq_ids == [1]
    manager.reserve({1: 9, 2: 4})
    assert manager.of(1)[:2] == held and manager.num_free == 0 and manager.seq_ids == [1, 2]


def test_what_was_promised_is_owed_until_it_is_held_or_freed():
    manager = BlockManager(4, BLOCK_SIZE, PLACES, MAX_BLOCKS)
    manager.reserve({1: 4})
    manager.promise(1, 12)
    assert (manager.num_free, manager.num_unpromised) == (3, 1)
    manager.reserve({1: 8})
    assert (manager.num_free, manager.num_unpromised) == (2, 1)
    manager.free(1)
    assert manager.num_unpromised == 4


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
