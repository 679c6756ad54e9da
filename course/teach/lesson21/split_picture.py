"""draw_split: two matrix products on two devices, cut by columns and then by rows, with the sum at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from course.display.board import Board, Cell, Frame, Panel

CELL = (44, 26)  # pixels: five panels of a device fill one line
X = np.array([[1, 2, 0, 1], [0, 1, 3, 1]])
A = np.array([[1, 0, 2, 1], [0, 1, 1, 0], [1, 1, 0, 2], [2, 0, 1, 1]])
B = np.array([[1, 0, 2], [0, 1, 1], [2, 1, 0], [1, 1, 1]])
STEPS = (
    ("One device", "y = relu(x A) B. A column of A makes a column of h. A row of B meets that same column of h."),
    ("A is cut by columns, B by rows", "Each device keeps half of A, and half of B. Both have all of x."),
    ("First product: no communication", "A device has whole columns of h, so it can apply relu to them alone."),
    ("Second product: partial sums", "Each device has a y of full size, from its own columns of h. Neither is right."),
    ("All-reduce", "The devices exchange their partial sums and add them. Both have y, and the next layer begins."),
)


def draw_split() -> Board:
    """Draw the split step by step, with small integers: frame 0 is one device, the others are two."""
    frames = [Frame(panels_of(number), heading, says) for number, (heading, says) in enumerate(STEPS)]
    partial = [int((relu(X @ A[:, part]) @ B[part])[0, 0]) for part in halves()]
    text = (
        f"y = relu(x A) B on two devices: A cut by columns, B by rows. y[0, 0] is {sum(partial)}, as the partial sums "
        f"{partial[0]} and {partial[1]}, added by one all-reduce."
    )
    legend = [Cell(0, 0, "on device 0", 0), Cell(0, 0, "on device 1", 1), Cell(0, 0, "on both", 2)]
    return Board(frames, text, legend=legend)


def halves() -> tuple[slice, slice]:
    return slice(0, 2), slice(2, 4)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def panels_of(number: int) -> list[Panel]:
    if number == 0:
        h = relu(X @ A)
        return [matrix("x", X, 2), matrix("A", A), matrix("h = relu(x A)", h), matrix("B", B), matrix("y = h B", h @ B)]
    return [panel for device, part in enumerate(halves()) for panel in device_panels(number, device, part)]


def device_panels(number: int, device: int, part: slice) -> Sequence[Panel]:
    """Draw what a device has by that step; what is still to come is empty."""
    h = relu(X @ A[:, part])
    y, whole = h @ B[part], relu(X @ A) @ B
    summed = number == 4
    return [
        matrix(f"device {device}: x", X, 2),
        matrix("its A", A[:, part], device),
        matrix("its h", h, device, is_there=number >= 2),
        matrix("its B", B[part], device),
        matrix("y" if summed else "partial y", whole if summed else y, 2 if summed else device, is_there=number >= 3),
    ]


def matrix(title: str, values: np.ndarray, colour: int | str = "", is_there: bool = True) -> Panel:
    cells = [
        Cell(row, column, int(value) if is_there else "", colour if is_there else "", dashed=not is_there)
        for (row, column), value in np.ndenumerate(values)
    ]
    return Panel(cells, title, cell=CELL)
