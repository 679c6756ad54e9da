"""Lesson 10: a walk over slots says exact facts."""

from __future__ import annotations

import re

import torch

from course.teach import walk_slots
from roseinfer.kernels.flat_cases import flat_case


def walked(sequences, block_size=8):
    case = flat_case(sequences, num_kv_heads=1, head_dim=2, block_size=block_size)
    return case, walk_slots(case.slot_mapping, case.query_start, case.context_lens, case.block_tables, block_size)


def test_a_frame_a_token_says_where_it_goes():
    case, walk = walked([(17, 1), (0, 11), (13, 7)])
    assert len(walk.frames) == 19
    slots, positions = case.slot_mapping.tolist(), [17, *range(11), *range(13, 20)]
    for n, frame in enumerate(walk.frames):
        said = re.search(r"token (\d+) of the batch is position (\d+) .*slot (\d+)", frame.heading + frame.says)
        assert tuple(map(int, said.groups())) == (n, positions[n], slots[n])
        marked = [cell.text for panel in frame.panels for cell in panel.cells if cell.outline]
        block = slots[n] // 8
        assert marked == [positions[n], slots[n], n, block]  # in the batch, the pool and the tables


def test_slots_are_told_in_runs_a_line_a_sequence():
    tables = torch.tensor([[3, 1, 9], [2, 5, 9]], dtype=torch.int32)  # after the last block anything may stand
    lens, starts = torch.tensor([10, 6]), torch.tensor([0, 1, 5])
    walk = walk_slots(torch.tensor([5, 10, 11, 20, 21]), starts, lens, tables[:, :3], block_size=4)
    assert repr(walk) == (
        "5 new tokens of 2 sequences, blocks of 4 tokens\n"
        "sequence 0, blocks [3, 1, 9]: positions 9 -> slots 5\n"
        "sequence 1, blocks [2, 5]: positions 2-5 -> slots 10-11, 20-21"
    )


def test_the_pool_fills_up_with_the_tokens_of_the_step():
    _, walk = walked([(0, 3)])
    pools = [frame.panels[1].cells for frame in walk.frames]
    assert [sum(cell.text != "" for cell in pool) for pool in pools] == [1, 2, 3]
