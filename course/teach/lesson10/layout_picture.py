"""draw_layouts: one block of a pool in the order of memory, in two layouts, and what one head reads of it."""

from __future__ import annotations

from course.display.board import WIDTH, Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE


def draw_layouts(num_kv_heads: int, block_size: int, head_dim: int, bytes_per_value: int, head: int = 0) -> Board:
    """Draw one block in two layouts: a box is the head_dim values that one KV head keeps of one token.

    The number in a box is the token's; the boxes of `head` are coloured. Raises ValueError if there is no such head.
    """
    if head not in range(num_kv_heads):
        raise ValueError(f"head must be 0 to {num_kv_heads - 1}, got {head!r}")
    box, block = head_dim * bytes_per_value, num_kv_heads * block_size
    by_token = [divmod(i, num_kv_heads) for i in range(block)]  # (token, head) in the order of memory
    by_head = [divmod(i, block_size)[::-1] for i in range(block)]
    ticks = {tick: f"{tick * box:,}" for tick in range(0, block, num_kv_heads)}
    panels = [
        _layout(by_token, head, f"token-major, [{block_size}, {num_kv_heads}, {head_dim}]", ticks),
        _layout(by_head, head, f"head-major, [{num_kv_heads}, {block_size}, {head_dim}]", ticks),
    ]
    return Board(
        [
            Frame(
                panels,
                says=f"Bytes from the beginning of the block; a box: {head_dim} values of one head, {box} bytes.",
            )
        ],
        f"One block of {block_size} tokens with {num_kv_heads} KV heads in the order of memory. Of it head {head} "
        f"reads, token-major, {block_size} pieces of {box} bytes, one every {num_kv_heads * box} bytes; head-major, "
        f"one piece of {block_size * box:,} bytes.",
    )


def _layout(order: list[tuple[int, int]], head: int, title: str, ticks: dict[int, str]) -> Panel:
    cells = [
        Cell(0, at, token, PALETTE[0] if owner == head else "", tooltip=f"token {token}, head {owner}")
        for at, (token, owner) in enumerate(order)
    ]
    return Panel(cells, title, ticks=ticks, cell=((WIDTH - 12) / len(order), 40), size=11)
