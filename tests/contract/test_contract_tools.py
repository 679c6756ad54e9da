"""What promises are made with: time limits, owners of blocks, bytes held, cases of a search."""

from __future__ import annotations

import time

import pytest
import torch
from right_stage import Right

from roseinfer.blocks import BlockTables
from roseinfer.contract import bytes_held
from roseinfer.contract.broken_promises import require_one_owner
from roseinfer.contract.schedule_search import Case, StageCall
from roseinfer.contract.time_limit import TookTooLong, time_limit


def test_a_limit_that_is_not_reached_changes_nothing():
    with time_limit(0.05):
        pass
    time.sleep(0.1)  # it would be raised here


def test_a_limit_stops_what_swallows_exceptions():
    with pytest.raises(TookTooLong), time_limit(0.05):
        while True:
            try:
                time.sleep(0.001)
            except Exception:
                pass


def test_block_owners_are_named():
    tables = BlockTables(num_tables=2, num_blocks=4, block_size=4)
    tables.reserve({7: 5, 8: 3})
    require_one_owner(tables)
    tables.of(8, 1)[0] = 1
    with pytest.raises(AssertionError, match="layer 1: block 1 is owned twice: by sequence 0 and by sequence 1"):
        require_one_owner(tables)
    tables.of(8, 1)[0] = 9
    with pytest.raises(AssertionError, match="layer 1: sequence 1 has block 9, of 4 there are"):
        require_one_owner(tables)


def test_bytes_held_counts_each_storage_once(small):
    stage = Right(small, num_blocks=1)
    assert bytes_held(stage) == 0
    tensor = torch.zeros(10)
    stage.caches = {0: [[tensor, tensor[2:]]], 1: (lambda: tensor)}
    assert bytes_held(stage) == 40


def test_a_case_tells_its_calls_in_order_and_renamed():
    calls = StageCall("prefill", ("D",), (1, 2)), StageCall("decode", ("D", "B"), (3,)), StageCall("free", ("D",))
    assert str(Case("gpt2", calls).renamed()) == (
        "model gpt2, 9 blocks of 4 tokens; prefill A, a prompt of 2 tokens; decode A, B; free A"
    )
