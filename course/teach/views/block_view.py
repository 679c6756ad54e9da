"""walk_blocks: the pool of a run behind a slider: owners, fills, takes and frees as a grid, and the block tables."""

from __future__ import annotations

from course.display.board import Board, Cell, Frame, Panel
from roseinfer.display.chart import INK
from roseinfer.display.figure import PALETTE
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from .block_schedule import Held, Schedule, ScheduleStep, record_run

TAKEN, WRITTEN = PALETTE[3], PALETTE[0]
POOL_COLUMNS, MANY_COLUMNS, FEW_BLOCKS = 3, 6, 24  # of a pool beside its tables, and of one above them
POOL_CELL, ENTRY = (120, 42), (26, 22)


def walk_blocks(stage: Stage, prompts: list[list[int]], max_tokens: list[int]) -> Board:
    """Run the prompts to their ends and draw a frame per step: one layer's pool, and which blocks each sequence holds.

    Of a stage that keeps its block tables in `device_buffer`, such as BlockTable, a decode step shows the table there,
    which is what attention was given. prompts[i] gets max_tokens[i] new tokens.
    """
    schedule = record_run(stage, prompts, [SamplingParams(max_tokens=n, ignore_eos=True) for n in max_tokens])
    steps = schedule.steps
    frames = [_frame(schedule, number) for number in range(len(steps))]
    fewest_free = schedule.num_blocks - max(step.num_blocks for step in steps)
    facts = f"{sum(max_tokens)} tokens; blocks: {schedule.num_blocks}, fewest free {fewest_free}"
    facts += f", used again {schedule.num_reused}, free at the end {stage.num_free_blocks}"
    fullest = max(range(len(steps)), key=lambda number: steps[number].num_blocks)
    return Board(frames, f"{len(frames)} frames: {facts}", shown=fullest)


def _title(step: ScheduleStep) -> str:
    return f"prefill {step.seqs[0]}" if step.kind == "prefill" else "decode"


def _list(seqs: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, seqs)) or "none"


def _frame(schedule: Schedule, number: int) -> Frame:
    step = schedule.steps[number]
    started = {seq for earlier in schedule.steps[: number + 1] for seq in earlier.seqs}
    waiting = [seq for seq in range(schedule.num_seqs) if seq not in started]
    done = sorted({seq for earlier in schedule.steps[: number + 1] for seq in earlier.freed})
    says = f"a token for: {_list(step.seqs)} · waiting: {_list(waiting)} · finished: {_list(done)}"
    return Frame([_pool(schedule, number), _tables(schedule, step)], f"step {number}: {_title(step)}", says)


def _pool(schedule: Schedule, number: int) -> Panel:
    step = schedule.steps[number]
    columns = POOL_COLUMNS if schedule.num_blocks <= FEW_BLOCKS else MANY_COLUMNS
    taken, held_by = schedule.taken(number), {block: held for held in step.held for block in held.blocks}
    cells = []
    for block in range(schedule.num_blocks):
        at = divmod(block, columns)
        held = held_by.get(block)
        cells.append(
            _block(*at, block, held, step, taken, schedule.block_size) if held else Cell(*at, f"{block} · free")
        )
    title = f"The pool of one layer, {step.num_blocks} of {schedule.num_blocks} blocks in use"
    return Panel(cells, title, cell=POOL_CELL, align="left")


def _block(
    row: int, column: int, block: int, held: Held, step: ScheduleStep, taken: dict[int, int | None], size: int
) -> Cell:
    tokens = min(size, max(0, held.num_tokens - held.blocks.index(block) * size))
    outline, note = "", ""
    if block in taken:
        outline, note = TAKEN, "taken" if taken[block] is None else f"taken, was seq {taken[block]}'s"
    elif _new_token(held, step, size) == (block, tokens - 1):
        outline, note = WRITTEN, f"slot {tokens - 1} written"
    is_freed = held.seq in step.freed
    if is_freed:
        outline, note = INK, "given back now"
    text = f"{block} · seq {held.seq}: {tokens}/{size}"
    return Cell(row, column, text, held.seq, note, outline, is_freed, filled=tokens / size)


def _new_token(held: Held, step: ScheduleStep, block_size: int) -> tuple[int, int] | None:
    """Find the block and slot of the token that a decode step has stored for a sequence; None if it stored none."""
    if step.kind != "decode" or held.seq not in step.seqs:
        return None
    index, slot = divmod(held.num_tokens - 1, block_size)
    return held.blocks[index], slot


def _tables(schedule: Schedule, step: ScheduleStep) -> Panel:
    """Show the block table that attention was given; without one, the blocks that each sequence holds."""
    rows = dict(zip(step.seqs, step.table, strict=True)) if step.table else {}
    width = max(len(rows.get(held.seq, held.blocks)) for held in step.held)
    title, lengths = "Block tables", "cached tokens"
    if rows:
        title = f"The block table as attention gets it, [{len(rows)}, {width}]; hatched: never used"
        lengths = "context_lens"
    cells = []
    for row, held in enumerate(step.held):
        for column, block in enumerate(rows.get(held.seq, held.blocks)):
            is_own = column < len(held.blocks)
            cells.append(Cell(row, column, block, held.seq if is_own else "", hatched=not is_own))
        place = _new_token(held, step, schedule.block_size)
        cells.append(Cell(row, width + 2, held.num_tokens - (held.seq in rows), outline="none"))
        if place:
            cells.append(Cell(row, width + 4, f"block {place[0]}, slot {place[1]}", width=5, outline="none"))
    heads = [*range(width), "", "", lengths, *[""] * 3, "the new token" if step.kind == "decode" else ""]
    return Panel(cells, title, [f"seq {held.seq}" for held in step.held], heads, cell=ENTRY)
