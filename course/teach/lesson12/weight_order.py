"""draw_weight_order: where the numbers of a matrix lie in memory, row by row and packed."""

from __future__ import annotations

from collections.abc import Callable

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.arguments import require_count
from roseinfer.display.figure import PALETTE


def draw_weight_order(num_rows: int = 8, width: int = 8, block: int = 4) -> Board:
    """Draw each number's place in memory on a matrix [num_rows, width]: row by row in one panel, packed in another.

    Packed: blocks of `block` rows, column by column inside a block.
    Raises ValueError for a size below 1, or num_rows that `block` does not divide.
    """
    for name, value in (("num_rows", num_rows), ("width", width), ("block", block)):
        require_count(name, value, at_least=1)
    if num_rows % block:
        raise ValueError(f"num_rows={num_rows} must be a multiple of block={block}")
    places = {
        "row by row": lambda row, column: row * width + column,
        f"packed: {block} rows at a time": lambda row, column: (
            row // block * block * width + column * block + row % block
        ),
    }
    panels = [_panel(f"{title}; [output, input]", place, num_rows, width) for title, place in places.items()]
    text = (
        f"A matrix of {num_rows} outputs and {width} inputs, each weight with its place in memory. Row by row, the "
        f"{block} weights of one input for outputs 0 to {block - 1} lie {width} apart; packed, they lie side by side."
    )
    return Board([Frame(panels)], text)


def _panel(title: str, place: Callable[[int, int], int], num_rows: int, width: int) -> Panel:
    """Draw a matrix in which a weight has a deeper colour the later it lies in memory."""
    cells = [
        Cell(row, column, at, PALETTE[0], strength=0.05 + 0.5 * at / (num_rows * width))
        for row in range(num_rows)
        for column in range(width)
        for at in [place(row, column)]
    ]
    return Panel(cells, title, range(num_rows), range(width), cell=(38, 30))
