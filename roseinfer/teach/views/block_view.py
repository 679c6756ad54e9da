"""The pool of a recorded run behind a slider: owners, fills, takes and frees as a grid, and the block tables.

block_view shows a Schedule. walk_blocks and walk_tables run a stage and show what was recorded.
"""

from __future__ import annotations

from roseinfer.display.figure import PALETTE
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..measure.table_price import require_tables
from .block_schedule import Held, Schedule, ScheduleStep, record_run
from .stepper import OUTLINE, Stepper, faint

TAKEN, WRITTEN, FREED = "2px solid #D55E00", "2px solid #0072B2", "2px dashed currentColor"
CELL = (
    "box-sizing: border-box; height: 46px; line-height: 21px; overflow: hidden; border-radius: 3px; padding: 0 6px; "
    "font-family: monospace; font-size: 12px"
)
FEW_BLOCKS = 24
TD = "text-align: center; padding: 2px 7px; font-family: monospace"
GREY = "rgba(128, 128, 128, 0.25); opacity: 0.5"
STEP_WIDTH = 16  # pixels of the history
HISTORY_HEIGHT, TALLEST_ROW, LEAST_WITH_TEXT = 280, 15, 10


def block_view(schedule: Schedule) -> Stepper:
    """A slider over the steps of `schedule` (from record_schedule, or Schedule.load), with a history of the pool.

    text/plain: the owner of every block in every step. Raises ValueError for anything but a Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule must be a Schedule, as teach.record_schedule makes, got {schedule!r}")
    history = _history(schedule)
    frames = [
        _frame(schedule, number, f"step {number}: {_title(step)}")
        + f"<p>Every block over all steps; the frame is step {number}</p>"
        + f'<div style="overflow-x: auto">{history.replace("<!-- now -->", _cursor(schedule, number))}</div>'
        for number, step in enumerate(schedule.steps)
    ]
    return Stepper(frames, "step", describe(schedule))


def walk_blocks(stage: Stage, prompts: list[list[int]], max_tokens: list[int], layer: int = 0) -> Stepper:
    """Run the prompts to their ends; a frame a step: one layer's pool, and who holds which blocks of it.

    prompts[i] gets max_tokens[i] new tokens.
    """
    schedule = _recorded(stage, prompts, max_tokens, layer)
    steps = schedule.steps
    frames = [_frame(schedule, number, f"step {number}: {_title(step)}") for number, step in enumerate(steps)]
    fewest_free = schedule.num_blocks - max(step.num_blocks for step in steps)
    facts = f"{sum(max_tokens)} tokens; blocks: {schedule.num_blocks}, fewest free {fewest_free}"
    facts += f", used again {schedule.num_reused}, free at the end {stage.num_free_blocks}"
    return Stepper(frames, "step", f"{len(frames)} frames: {facts}")


def walk_tables(stage: Stage, prompts: list[list[int]], max_tokens: list[int], layer: int = 0) -> Stepper:
    """Run the prompts to their ends; a frame a decode step: one layer's pool, and its block table beside it.

    stage: one that keeps its tables in `device_buffer`, such as BlockTable. The table of a frame is
    read from there, so it is what attention was given. prompts[i] gets max_tokens[i] new tokens.
    Raises ValueError for a stage without block tables.
    """
    require_tables("stage", type(stage))
    schedule = _recorded(stage, prompts, max_tokens, layer)
    decodes = [number for number, step in enumerate(schedule.steps) if step.kind == "decode"]
    frames = [_frame(schedule, number, f"decode step {i}") for i, number in enumerate(decodes)]
    tables = [schedule.steps[number].table for number in decodes]
    facts = f"largest table {max(map(len, tables))} x {max(len(table[0]) for table in tables)}; "
    facts += (
        f"of {schedule.num_blocks} blocks {schedule.num_reused} used again, {stage.num_free_blocks} free at the end"
    )
    return Stepper(frames, "decode step", f"{len(frames)} frames: {facts}")


def _recorded(stage: Stage, prompts: list[list[int]], max_tokens: list[int], layer: int) -> Schedule:
    return record_run(stage, prompts, [SamplingParams(max_tokens=n, ignore_eos=True) for n in max_tokens], layer)


def describe(schedule: Schedule) -> str:
    """A line a step, a column a block: the owner, with + where it took the block, ± where another had it before."""
    s = schedule
    lines = [
        f"{s.stage}: {s.num_blocks} blocks of {s.block_size} tokens, {len(s.prompt_lens)} sequences, "
        f"at most {s.max_num_seqs} at once",
        f"{'block':14}" + "".join(f"{block:4}" for block in range(s.num_blocks)),
    ]
    for number, step in enumerate(s.steps):
        cells = ["." if owner is None else str(owner) for owner in s.owners(number)]
        for block, before in s.taken(number).items():
            cells[block] = f"{'+' if before is None else '±'}{cells[block]}"
        freed = f"   frees {_list(step.freed)}" if step.freed else ""
        lines.append(f"{number:3} {_title(step):10}{''.join(f'{cell:>4}' for cell in cells)}{freed}")
    lines.append(
        f"{len(s.steps)} steps; {max(step.num_blocks for step in s.steps)} blocks in use at most, {s.num_reused} taken "
        f"that another had before, {s.num_blocks - s.steps[-1].num_kept} free at the end"
    )
    return "\n".join(lines)


def _title(step: ScheduleStep) -> str:
    return f"prefill {step.seqs[0]}" if step.kind == "prefill" else "decode"


def _list(seqs: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, seqs)) or "none"


def _frame(schedule: Schedule, number: int, title: str) -> str:
    step = schedule.steps[number]
    started = {seq for earlier in schedule.steps[: number + 1] for seq in earlier.seqs}
    waiting = [seq for seq in range(len(schedule.prompt_lens)) if seq not in started]
    done = sorted({seq for earlier in schedule.steps[: number + 1] for seq in earlier.freed})
    columns = "display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start"
    return (
        f"<p><b>{title}</b> · a token for: {_list(step.seqs)} · waiting: {_list(waiting)} · finished: {_list(done)}</p>"
        f'<div style="{columns}">{_pool(schedule, number)}{_tables(schedule, step)}</div>'
    )


def _pool(schedule: Schedule, number: int) -> str:
    step, taken, size = schedule.steps[number], schedule.taken(number), schedule.block_size
    cells = [_cell(f"{block} · free") for block in range(schedule.num_blocks)]
    for held in step.held:
        for i, block in enumerate(held.blocks):
            tokens = min(size, max(0, held.num_tokens - i * size))
            border, note = OUTLINE, ""
            if block in taken:
                border, note = TAKEN, "taken" if taken[block] is None else f"taken, was seq {taken[block]}'s"
            elif _new_token(held, step, size) == (block, tokens - 1):
                border, note = WRITTEN, f"slot {tokens - 1} written"
            if held.seq in step.freed:
                border, note = FREED, "given back now"
            fill = f"linear-gradient(90deg, {_colour(held.seq)} {tokens / size:.0%}, transparent {tokens / size:.0%})"
            cells[block] = _cell(f"{block} · seq {held.seq}: {tokens}/{size}", note, border, fill)
    grid = "display: grid; grid-template-columns: repeat(auto-fill, 11.5em); gap: 3px"
    # Two columns leave room for the tables beside them; a large pool has more, and the tables below.
    basis = 23.5 if schedule.num_blocks <= FEW_BLOCKS else 40
    caption = f"The pool of one layer, {step.num_blocks} of {schedule.num_blocks} blocks in use"
    return (
        f'<div style="flex: 1 1 {basis}em; max-width: 40em"><p>{caption}</p>'
        f'<div style="{grid}">{"".join(cells)}</div></div>'
    )


def _new_token(held: Held, step: ScheduleStep, block_size: int) -> tuple[int, int] | None:
    """Block and slot of the token that a decode step has stored for a sequence."""
    if step.kind != "decode" or held.seq not in step.seqs:
        return None
    index, slot = divmod(held.num_tokens - 1, block_size)
    return held.blocks[index], slot


def _cell(text: str, note: str = "", border: str = OUTLINE, fill: str = "transparent") -> str:
    return (
        f'<div style="{CELL}; border: {border}; background: {fill}">{text}'
        f'<div style="font-size: 10px">{note}</div></div>'
    )


def _tables(schedule: Schedule, step: ScheduleStep) -> str:
    """What attention was given, where it was given a table; else the blocks that each sequence holds."""
    rows = dict(zip(step.seqs, step.table, strict=True)) if step.table else {}
    width = max(len(rows.get(held.seq, held.blocks)) for held in step.held)
    caption, heads = "Block tables", ["cached tokens", "the new token" if step.kind == "decode" else ""]
    if rows:
        caption = f"The block table as attention gets it, [{len(rows)}, {width}]; grey: never used"
        heads[0] = "context_lens"
    body = "".join(_row(held, rows.get(held.seq), width, step, schedule.block_size) for held in step.held)
    head = "".join(f'<th style="{TD}">{text}</th>' for text in ("", *range(width), *heads))
    return f"<div><p>{caption}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _row(held: Held, row: tuple[int, ...] | None, width: int, step: ScheduleStep, block_size: int) -> str:
    """row: as attention got it, with the tokens that were cached as the step began."""
    entries = list(held.blocks if row is None else row)
    grounds = [_colour(held.seq) if i < len(held.blocks) else GREY for i in range(len(entries))]
    styles = [f"{TD}; border: {OUTLINE}; background: {ground}" for ground in grounds]
    cells = "".join(f'<td style="{style}">{entry}</td>' for entry, style in zip(entries, styles, strict=True))
    cells += "<td></td>" * (width - len(entries))
    place = _new_token(held, step, block_size)
    notes = [f"block {place[0]}, slot {place[1]}"] if place else []
    notes += ["finished"] if held.seq in step.freed else []
    cells += "".join(
        f'<td style="{TD}">{text}</td>' for text in (held.num_tokens - (row is not None), "; ".join(notes))
    )
    return f'<tr><td style="{TD}">seq {held.seq}</td>{cells}</tr>'


def _colour(seq: int) -> str:
    return faint(PALETTE[seq % len(PALETTE)])


def _row_height(schedule: Schedule) -> float:
    return min(TALLEST_ROW, HISTORY_HEIGHT / schedule.num_blocks)


def _history(schedule: Schedule) -> str:
    """A row a block, a column a step; a bar for each stay of a sequence in a block, with its number."""
    height, steps = _row_height(schedule), len(schedule.steps)
    with_text = height >= LEAST_WITH_TEXT
    shapes = [
        f'<text x="34" y="{(block + 0.75) * height:.1f}" text-anchor="end" font-size="10">{block}</text>'
        for block in range(schedule.num_blocks)
        if with_text
    ]
    for block, first, last, seq in _stays(schedule):
        x, y = 40 + first * STEP_WIDTH, block * height
        title = f"block {block}: sequence {seq}, steps {first} to {last}"
        shapes.append(
            f'<rect x="{x}" y="{y:.1f}" width="{(last - first + 1) * STEP_WIDTH - 1}" height="{height - 1:.1f}" '
            f'fill="{PALETTE[seq % len(PALETTE)]}" fill-opacity="0.5"><title>{title}</title></rect>'
        )
        if with_text:
            shapes.append(f'<text x="{x + 3}" y="{(block + 0.75) * height:.1f}" font-size="10">{seq}</text>')
    size = f'width="{42 + steps * STEP_WIDTH}" height="{schedule.num_blocks * height + 4:.0f}"'
    label = f'role="img" aria-label="blocks by step: {schedule.num_blocks} blocks, {steps} steps"'
    return f'<svg {size} {label} fill="currentColor" font-family="monospace">{"".join(shapes)}<!-- now --></svg>'


def _stays(schedule: Schedule) -> list[tuple[int, int, int, int]]:
    """(block, first step, last step, sequence) of each stay."""
    stays: list[tuple[int, int, int, int]] = []
    running: dict[int, tuple[int, int]] = {}  # block -> sequence, first step
    for number, step in enumerate(schedule.steps):
        for held in step.held:
            for block in held.blocks:
                seq, first = running.setdefault(block, (held.seq, number))
                if held.seq in step.freed:
                    stays.append((block, first, number, seq))
                    del running[block]
    last = len(schedule.steps) - 1
    return stays + [(block, first, last, seq) for block, (seq, first) in running.items()]


def _cursor(schedule: Schedule, number: int) -> str:
    x, height = 39.5 + number * STEP_WIDTH, schedule.num_blocks * _row_height(schedule)
    return (
        f'<rect x="{x}" y="0.5" width="{STEP_WIDTH}" height="{height:.1f}" fill="none" stroke="currentColor" '
        'stroke-width="1.5"/>'
    )
