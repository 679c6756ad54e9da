"""draw_flat_batch: prompts of mixed lengths as one row of tokens, beside the padded batch that it replaces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.chart import INK

CELL = (44, 28)  # pixels


def draw_flat_batch(query_start: Sequence[int]) -> Board:
    """Draw the padded batch and the flat one. The last row of each sequence has a thick frame.

    query_start [B + 1]: where each sequence begins in the flat batch, and the end. Raises ValueError when it does not
    begin with 0 and grow.
    """
    starts = [int(n) for n in query_start]
    lengths = [end - start for start, end in pairwise(starts)]
    if not lengths or starts[0] != 0 or min(lengths) < 1:
        raise ValueError(f"query_start must begin with 0 and grow, got {starts}")
    total, longest = starts[-1], max(lengths)
    padded = [
        Cell(row, token, colour=row if token < n else "", outline=_outline(token == n - 1), hatched=token >= n)
        for row, n in enumerate(lengths)
        for token in range(longest)
    ]
    flat = [
        Cell(0, starts[row] + token, colour=row, outline=_outline(token == n - 1))
        for row, n in enumerate(lengths)
        for token in range(n)
    ]
    labels = [f"seq {row}" for row in range(len(lengths))]
    title = f"padded: {len(lengths)} x {longest} = {len(lengths) * longest} rows"
    ticks = {start: str(start) for start in starts}
    panels = [
        Panel(padded, title, labels, range(longest), unit="position", cell=CELL),
        Panel(flat, f"flat: {total} rows", [""], ticks=ticks, unit="query_start, and row of the batch", cell=CELL),
    ]
    return Board(
        [Frame(panels)],
        f"Prompts of {lengths} tokens. Padded, they are {len(lengths)} x {longest} = {len(lengths) * longest} rows; "
        f"flat, {total}. query_start is {starts}, the last rows are {[n - 1 for n in starts[1:]]}.",
    )


def _outline(is_last: bool) -> str:
    return INK if is_last else ""
