"""draw_melting: the operations of a decode step, one after another, and the one function that they melt into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.display.board import EDGE, Board, Cell, Frame, Panel
from roseinfer.arguments import counted
from roseinfer.display.figure import PALETTE

from .operation_times import ATTENTION, OTHER, PRODUCT, OperationTimes

KINDS = {PRODUCT: PALETTE[0], ATTENTION: PALETTE[2], OTHER: PALETTE[4]}
HOST, KERNEL = "the host, before and after", "one function"
COLOURS = {**KINDS, KERNEL: PALETTE[3], HOST: EDGE}
LEGEND = [Cell(0, 0, name, colour) for name, colour in COLOURS.items()]
MOMENTS, PLAYED_MS = 24, 250  # of the longer step while it plays, and how long each is shown


def draw_melting(before: OperationTimes, after: OperationTimes) -> Board:
    """Draw a decode step of two stages on one scale of time, as time_operations has measured them.

    The first frame has all of both, and then they play side by side, from their beginning. The second step is one
    function. Grey is what the host does around the operations. Raises ValueError unless the second has one operation,
    and both have as many sequences.
    """
    if len(after.operations) != 1:
        raise ValueError(f"after must be a step of one operation, got {len(after.operations)} of {after.stage}")
    if before.batch_size != after.batch_size:
        raise ValueError(f"before and after must have one batch size, got {before.batch_size} and {after.batch_size}")
    steps = before, after
    text = "\n".join(
        [
            f"one decode step, {counted(before.batch_size, 'sequence')}",
            *(f"{each.stage}: {counted(len(each.operations), 'operation')}" for each in steps),
        ]
    )
    times = "; ".join(f"{each.stage} {each.step_us:,.0f} µs, {_host(each):,.0f} of them the host" for each in steps)
    cells = [cell for row, each in enumerate(steps) for cell in _boxes(row, each, len(each.operations) == 1)]
    names, end = [each.stage for each in steps], max(cell.column + cell.width for cell in cells)
    moments = [end, *(end * moment / MOMENTS for moment in range(1, MOMENTS + 1))]
    frames = [
        Frame([Panel(_until(cells, now), times, names, unit="µs", cell=(1, 40), room=(end, 2))], f"after {now:,.0f} µs")
        for now in moments
    ]
    return Board(frames, text, label="moment", shown=0, legend=LEGEND, frame_ms=PLAYED_MS, alt=f"{text}\n{times}")


def _until(cells: list[Cell], now: float) -> list[Cell]:
    """Cut what has not happened yet."""
    return [replace(cell, width=min(cell.width, now - cell.column)) for cell in cells if cell.column < now]


def _host(times: OperationTimes) -> float:
    """Return the microseconds of a step around its replay; 0 where noise makes the separate measurements cross."""
    return max(0.0, times.step_us - times.replay_us)


def _boxes(row: int, times: OperationTimes, is_kernel: bool) -> Iterator[Cell]:
    """List the host's part of a step, then each operation. Gaps between operations are left empty."""
    host = _host(times)
    yield _box(row, 0, host, COLOURS[HOST], HOST)
    for each in times.operations:
        colour, name = (COLOURS[KERNEL], KERNEL) if is_kernel else (KINDS[each.kind], each.name)
        yield _box(row, host + each.begin, each.end - each.begin, colour, name)


def _box(row: int, begin: float, microseconds: float, colour: str, name: str) -> Cell:
    tooltip = f"{name}: {microseconds:,.0f} µs"
    return Cell(row, begin, colour=colour, outline="none", width=microseconds, tooltip=tooltip)
