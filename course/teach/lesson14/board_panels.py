"""Panels of the board: the queue, the step as a box of `budget` tokens, and the pool, in one step of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from course.display.board import CHAR, WIDTH, Cell, Panel
from roseinfer.display.figure import PALETTE

from ..measure.request_run import DECODE, PROMPT, RECOMPUTED, Row
from ..measure.step_pool import PoolSize, StepPool
from ..views.run_charts import COLOURS, PREEMPTED, WAITING

CHIP, CHIPS = (64, 34), 12  # pixels of a waiting request, and how many have room
BOX, WIDEST_TOKEN, MOST_CELLS = 820, 28, 64  # of a step: pixels, and tokens that are cells
POOL_WIDTH, WIDEST_BLOCK, BLOCK_HEIGHT, SIZE = 780, 90, 26, 11
MOST_COLUMNS, MANY_COLUMNS, MANY_BLOCKS = 16, 32, 128
# Of requests, in turn: colours that no kind of token has.
TINTS = ((PALETTE[2], 0.5), (PALETTE[6], 0.6), (PALETTE[2], 0.22), (PALETTE[6], 0.28))
SEAMED = 11  # pixels: wider cells have a seam of 2
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
    return Panel([_whole_line(CHIP), *chips], title, cell=CHIP)


def step_panel(title: str, rows: tuple[Row, ...], budget: int) -> Panel:
    """Draw a cell per token; for a large budget, one box in which a request's part is as wide as it has tokens."""
    across = min(WIDEST_TOKEN, BOX / budget)
    cell = (across, BLOCK_HEIGHT)
    size = 10 if across < 14 else 12
    cells, column = [], 0
    for row in rows:
        has_room = row.num_new * across >= len(str(row.request)) * size * CHAR
        text = row.request if has_room else ""
        tooltip = f"request {row.request}: {row.num_new} {row.kind}"
        part = _part((0, column), row.num_new * across - 2 * (across > SEAMED), cell, COLOURS[row.kind], STRENGTH)
        cells.append(replace(part, text=text, tooltip=tooltip))
        column += row.num_new
    room = [Cell(0, place) for place in range(budget)] if budget <= MOST_CELLS else [Cell(0, 0, width=budget)]
    return Panel([_whole_line(cell), *room, *cells], title, cell=cell, size=size)


def pool_panel(title: str, pool: StepPool, size: PoolSize, rows: tuple[Row, ...], ending: set[int]) -> Panel:
    """Draw every block, filled as far as its slots are used after the step. ending: requests that end with it."""
    num_rows = -(-size.num_blocks // (MANY_COLUMNS if size.num_blocks > MANY_BLOCKS else MOST_COLUMNS))
    columns = -(-size.num_blocks // num_rows)
    cell = (min(WIDEST_BLOCK, POOL_WIDTH / columns), BLOCK_HEIGHT)
    computed = {row.request: row for row in rows}
    owners = {block: request for request, held in pool.held.items() for block in held.blocks}
    cells = [_whole_line(cell)]
    for request, held in pool.held.items():
        for place, block in enumerate(held.blocks):
            at = divmod(block, columns)
            cells += _slots(at, cell, request, held.num_cached - place * size.block_size, size, computed.get(request))
    for block in range(size.num_blocks):
        owner = owners.get(block)
        tooltip = f"block {block}: " + ("free" if owner is None else f"request {owner}")
        text = "" if owner is None else owner
        cells.append(Cell(*divmod(block, columns), text, dashed=owner in ending, tooltip=tooltip))
    return Panel(cells, title, range(0, size.num_blocks, columns), cell=cell, size=SIZE)


def _slots(
    at: tuple[int, int], cell: tuple[float, float], request: int, cached: int, size: PoolSize, row: Row | None
) -> Iterator[Cell]:
    """Draw the used part of a block. cached: tokens in this block and those after it, before the step."""
    slot = (cell[0] - 2) / size.block_size  # pixels
    before = min(max(cached, 0), size.block_size)
    after = min(max(cached + (row.num_new if row else 0), 0), size.block_size)
    if before:
        yield _part(at, before * slot, cell, *TINTS[request % len(TINTS)])
    if row and after > before:
        begin = at[0], at[1] + before * slot / cell[0]
        yield _part(begin, (after - before) * slot, cell, COLOURS[row.kind], STRENGTH)


def _part(at: tuple[float, float], pixels: float, cell: tuple[float, float], colour: str, strength: float) -> Cell:
    """Make a part of a box, `pixels` wide and as high as the box; a narrow part has a narrower seam than the box."""
    seam = 2 if pixels + 2 > SEAMED else 0.5
    width, height = (pixels + seam) / cell[0], (cell[1] - 2 + seam) / cell[1]
    return Cell(*at, colour=colour, strength=strength, outline="none", width=width, height=height)


def _whole_line(cell: tuple[float, float]) -> Cell:
    """Make an invisible cell that gives a panel a line of its own, and a height while it is empty."""
    return Cell(0, 0, outline="none", width=(WIDTH - 60) / cell[0])
