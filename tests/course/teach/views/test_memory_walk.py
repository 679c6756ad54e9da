"""The walk through memory: its counters against addresses that torch works out, and the frames."""

from __future__ import annotations

import pytest
import torch

from course.teach import walk_memory
from course.teach.views.memory_reads import LAYOUTS, Batch, count, reads_of

SHAPES = [
    ([7, 2, 5], 2, 4, 8, 4),
    ([5], 1, 4, 32, 4),  # a key of two lines
    ([3, 9], 3, 2, 10, 2),  # keys that straddle lines
    ([4, 4], 2, 4, 4, 2),  # eight keys in a line
]


def addresses(*shape: int, head_dim: int, bytes_per_value: int) -> torch.Tensor:
    """The address of each value of a contiguous tensor."""
    return torch.arange(torch.Size(shape).numel() * head_dim).view(*shape, head_dim) * bytes_per_value


def pieces(layout: str, lengths, heads, block_size, head_dim, bytes_per_value):
    """The addresses that each task reads, by indexing as the stages do."""
    value = {"head_dim": head_dim, "bytes_per_value": bytes_per_value}
    tables = Batch(lengths, heads, block_size, head_dim, bytes_per_value).tables
    num_blocks = sum(map(len, tables))
    if layout == "token-major":
        by_head = addresses(num_blocks, block_size, heads, **value).permute(2, 0, 1, 3)
    else:
        by_head = addresses(num_blocks, heads, block_size, **value).transpose(0, 1)
    rows = zip(tables, lengths, strict=True)
    return [by_head[head][table].flatten(0, 1)[:n] for table, n in rows for head in range(heads)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_counters_are_those_of_the_addresses(layout, shape):
    *_, bytes_per_value = shape
    batch = Batch(*shape)
    got = count(list(reads_of(LAYOUTS[layout](batch), batch.row_bytes)))
    lines, used = [], 0
    for read in pieces(layout, *shape):
        lines += dict.fromkeys((read.flatten() // 64).tolist())
        used += read.numel() * bytes_per_value
    jumps = sum(b - a not in (0, 1) for a, b in zip(lines, lines[1:], strict=False))
    assert got == (used, 64 * len(lines) - used, len(lines), len(set(lines)), jumps)


def test_every_layout_uses_the_same_bytes():
    walk = walk_memory([7, 2, 5], num_kv_heads=2, block_size=4, head_dim=8, bytes_per_value=4)
    assert repr(walk) == (
        "Sequences of [7, 2, 5] cached tokens, 2 KV heads, keys of 32 bytes, cache lines of 64\n"
        "token-major [5, 4, 2, 8]: 896 bytes used, 896 read and not used; 28 reads of 14 cache lines, 9 jumps\n"
        "head-major [5, 2, 4, 8]: 896 bytes used, 128 read and not used; 16 reads of 16 cache lines, 9 jumps"
    )


def test_a_step_reads_a_line_in_each_layout_until_it_is_done():
    walk = walk_memory([7, 2, 5], 2, 4, 8, 4, layouts=["token-major", "head-major"])
    assert len(walk.frames) == 29
    assert {"token-major [5, 4, 2, 8]: reads sequence 0, head 0", "32", "1"} <= set(walk.texts(1))
    assert {"token-major [5, 4, 2, 8]: reads sequence 1, head 1", "head-major [5, 2, 4, 8]: done"} <= set(
        walk.texts(17)
    )
    *_, table = walk.frames[-1].panels
    assert [cell.text for cell in table.cells][6:12] == ["token-major", "896", "896", "28", "14", "9"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"lengths": []}, "lengths must hold at least one sequence, got none"),
        ({"lengths": [3, 0]}, "lengths must be an integer of at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be an integer of at least 1, got 0"),
        ({"layouts": ["by token"]}, "layouts: unknown value 'by token'"),
        ({"layouts": ["head-major"] * 2}, "layouts must be a list with each value once"),
        ({"head_dim": 512}, "token-major must have at most 48 cache lines to be drawn, got 128"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_cannot_be_drawn_is_refused(changed, message):
    sizes = {"lengths": [3], "num_kv_heads": 1, "block_size": 4, "head_dim": 8, "bytes_per_value": 4}
    with pytest.raises(ValueError, match=message):
        walk_memory(**(sizes | changed))
