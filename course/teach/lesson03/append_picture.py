"""draw_append: two ways to take the new token's column out of a batch."""

from __future__ import annotations

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE


def draw_append(batch_size: int, num_tokens: int) -> Board:
    """Draw the batch after attention, [B, H_kv, T + 1, D], and two ways to take the new token's column out of it."""
    rows, columns = range(batch_size), range(num_tokens + 1)
    batch = [Cell(row, token, colour=PALETTE[0] if token == num_tokens else "") for row in rows for token in columns]
    cuts = {
        "02: a slice for each sequence": [Cell(row, num_tokens, outline=PALETTE[3]) for row in rows],
        "03: one select for all": [Cell(0, num_tokens, outline=PALETTE[3], height=batch_size)],
    }
    labels, unit = [f"seq {row}" for row in rows], f"token (new one at {num_tokens})"
    return Board(
        [Frame([Panel([*batch, *cut], title, labels, columns, unit=unit) for title, cut in cuts.items()])],
        f"A batch of {batch_size} sequences by {num_tokens + 1} tokens. On the left the new token is cut out "
        f"{batch_size} times, once per sequence; on the right its column is selected once.",
    )
