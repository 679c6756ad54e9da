"""What promises are made with: time limits, owners of blocks, bytes held, cases of a search."""

from __future__ import annotations

import time

import pytest
import torch
from right_stage import Right

from course.contract import bytes_held
from course.contract.broken_promises import require_one_owner
from course.contract.queue.search import QueueCall, QueueCase
from course.contract.shortest_case import require_none_breaks, told
from course.contract.time_limit import TookTooLong, time_limit
from roseinfer.blocks import BlockTables


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


QUEUE_CASE = QueueCase(
    9, 4, 2, 8, calls=(QueueCall("step", 3), QueueCall("add", 7, max_tokens=5), QueueCall("abort", 6))
)


def test_a_case_that_breaks_is_told_with_the_calls_that_it_needs():
    def what_breaks(case):
        adds = [call for call in case.calls if call.max_tokens > 1]
        return told("; ".join(map(str, case.calls)), ValueError("too many")) if adds else None

    with pytest.raises(AssertionError) as raised:
        require_none_breaks([QueueCase(9, 4, 2, 8, calls=()), QUEUE_CASE], what_breaks)
    assert str(raised.value) == f"{QUEUE_CASE.calls[1]}: ValueError: too many"
    assert isinstance(raised.value.__cause__, ValueError)
    require_none_breaks([QUEUE_CASE], lambda case: None)
