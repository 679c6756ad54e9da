"""draw_weight_order: where the numbers of a matrix lie in memory, row by row and packed."""

from __future__ import annotations

from collections.abc import Callable

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE

NUM_ROWS, WIDTH, BLOCK = 8, 8, 4


def draw_weight_order() -> Board:
    """Draw each number's place in memory on a matrix: row by row in one panel, packed in another.

    Packed: blocks of BLOCK rows, column by column inside a block.
    """
    places = {
        "row by row": lambda row, column: row * WIDTH + column,
        f"packed: {BLOCK} rows at a time": lambda row, column: (
            row // BLOCK * BLOCK * WIDTH + column * BLOCK + row % BLOCK
        ),
    }
    panels = [_panel(f"{title}; [output, input]", place) for title, place in places.items()]
    text = (
        f"A matrix of {NUM_ROWS} outputs and {WIDTH} inputs, each weight with its place in memory. Row by row, the "
        f"{BLOCK} weights of one input for outputs 0 to {BLOCK - 1} lie {WIDTH} apart; packed, they lie side by side."
    )
    return Board([Frame(panels)], text)


def _panel(title: str, place: Callable[[int, int], int]) -> Panel:
    """Draw a matrix in which a weight has a deeper colour the later it lies in memory."""
    cells = [
        Cell(row, column, at, PALETTE[0], strength=0.05 + 0.5 * at / (NUM_ROWS * WIDTH))
        for row in range(NUM_ROWS)
        for column in range(WIDTH)
        for at in [place(row, column)]
    ]
    return Panel(cells, title, range(NUM_ROWS), range(WIDTH), cell=(38, 30))
