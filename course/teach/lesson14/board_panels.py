"""Panels of the board: the queue, the step as a box of `budget` tokens, and the pool, in one step of a run."""

from __future__ import annotations

from collections.abc import Iterator

from course.display.board import Cell, Panel
from roseinfer.display.figure import PALETTE

from ..measure.request_run import DECODE, PROMPT, RECOMPUTED, Row
from ..measure.step_pool import PoolSize, StepPool
from ..views.run_charts import COLOURS, PREEMPTED, WAITING

CHIP, CHIPS = (64, 34), 12  # pixels of a waiting request, and how many have room
WIDEST_TOKEN, MOST_CELLS = 28, 64  # of a step: pixels, and tokens that are cells
WIDEST_BLOCK, BLOCK_HEIGHT, SIZE = 90, 26, 11
MOST_COLUMNS, MANY_COLUMNS, MANY_BLOCKS = 16, 32, 128
# Of requests, in turn: colours that no kind of token has.
TINTS = ((PALETTE[2], 0.5), (PALETTE[6], 0.6), (PALETTE[2], 0.22), (PALETTE[6], 0.28))
STRENGTH = 0.75  # of tokens that the step computes
LEGEND = (
    *(Cell(0, 0, kind, COLOURS[kind], strength=STRENGTH) for kind in (PROMPT, RECOMPUTED, DECODE)),
    Cell(0, 0, "cached before; green or yellow by request", TINTS[0][0], strength=TINTS[0][1]),
    Cell(0, 0, "given back after the step", dashed=True),
    Cell(0, 0, WAITING, COLOURS[WAITING]),
    Cell(0, 0, PREEMPTED, COLOURS[PREEMPTED]),
)


def queue_panel(title: str, waiting: dict[int, int], preempted: set[int]) -> Panel:
    """Draw the queue. waiting: the tokens that each waiting request has, the next one first."""
    chips = [
        Cell(0, place, request, COLOURS[PREEMPTED if request in preempted else WAITING], f"{tokens} tokens")
        for place, (request, tokens) in enumerate(waiting.items())
    ]
    if len(chips) > CHIPS:
        chips[CHIPS:] = [Cell(0, CHIPS, f"+ {len(chips) - CHIPS}", outline="none")]
    return Panel(chips, title, cell=CHIP, room=(CHIPS, 1))


def step_panel(title: str, rows: tuple[Row, ...], budget: int) -> Panel:
    """Draw a cell per token; for a large budget, one box in which a request's part is as wide as it has tokens."""
    cells = [Cell(0, place) for place in range(budget)] if budget <= MOST_CELLS else [Cell(0, 0, width=budget)]
    column = 0
    for row in rows:
        tooltip = f"request {row.request}: {row.num_new} {row.kind}"
        colour, width = COLOURS[row.kind], row.num_new
        cells.append(Cell(0, column, row.request, colour, strength=STRENGTH, width=width, tooltip=tooltip))
        column += width
    return Panel(cells, title, cell=(WIDEST_TOKEN, BLOCK_HEIGHT), size=12 if budget <= MOST_CELLS else 10)


def pool_panel(title: str, pool: StepPool, size: PoolSize, rows: tuple[Row, ...], ending: set[int]) -> Panel:
    """Draw every block, filled as far as its slots are used after the step. ending: requests that end with it."""
    num_rows = -(-size.num_blocks // (MANY_COLUMNS if size.num_blocks > MANY_BLOCKS else MOST_COLUMNS))
    columns = -(-size.num_blocks // num_rows)
    computed = {row.request: row for row in rows}
    owners = {block: request for request, held in pool.held.items() for block in held.blocks}
    cells: list[Cell] = []
    for request, held in pool.held.items():
        for place, block in enumerate(held.blocks):
            at = divmod(block, columns)
            cells += _slots(at, request, held.num_cached - place * size.block_size, size, computed.get(request))
    for block in range(size.num_blocks):
        owner = owners.get(block)
        tooltip = f"block {block}: " + ("free" if owner is None else f"request {owner}")
        text = "" if owner is None else owner
        cells.append(Cell(*divmod(block, columns), text, dashed=owner in ending, tooltip=tooltip))
    labels = range(0, size.num_blocks, columns)
    return Panel(cells, title, labels, cell=(WIDEST_BLOCK, BLOCK_HEIGHT), size=SIZE)


def _slots(at: tuple[int, int], request: int, cached: int, size: PoolSize, row: Row | None) -> Iterator[Cell]:
    """Draw the used part of a block. cached: tokens in this block and those after it, before the step."""
    before = min(max(cached, 0), size.block_size) / size.block_size
    after = min(max(cached + (row.num_new if row else 0), 0), size.block_size) / size.block_size
    if before:
        colour, strength = TINTS[request % len(TINTS)]
        yield Cell(*at, colour=colour, strength=strength, outline="none", width=before)
    if row and after > before:
        colour, width = COLOURS[row.kind], after - before
        yield Cell(at[0], at[1] + before, colour=colour, strength=STRENGTH, outline="none", width=width)
