"""block_view: a slider over the steps of a recorded run, with the pool as a grid: owners, fills, frees and reuse."""

from __future__ import annotations

from roseinfer.display.figure import PALETTE

from .block_schedule import Held, Schedule, ScheduleStep
from .fact_slider import ContractStepper
from .step_sliders import OUTLINE, faint

TAKEN = "2px solid #D55E00"
FREED = "2px dashed currentColor"
CELL = (
    "box-sizing: border-box; height: 46px; line-height: 21px; overflow: hidden; border-radius: 3px; padding: 0 6px; "
    "font-family: monospace; font-size: 12px"
)
TD = "text-align: center; padding: 2px 9px; font-family: monospace"
STEP_WIDTH = 16  # pixels of the history
HISTORY_HEIGHT, TALLEST_ROW, LEAST_WITH_TEXT = 280, 15, 10


def block_view(schedule: Schedule) -> ContractStepper:
    """A slider over the steps of `schedule` (from record_schedule, or Schedule.load).

    text/plain: the owner of every block in every step. Raises ValueError for anything but a Schedule.
    """
    if not isinstance(schedule, Schedule):
        raise ValueError(f"schedule must be a Schedule, as teach.record_schedule makes, got {schedule!r}")
    history = _history(schedule)
    frames = [_frame(schedule, number, history) for number in range(len(schedule.steps))]
    return ContractStepper(frames, "step", describe(schedule))


def describe(schedule: Schedule) -> str:
    """A line a step, a column a block: the owner, with + where it took the block, ± where another had it before."""
    s = schedule
    lines = [
        f"{s.stage}: {s.num_blocks} blocks of {s.block_size} tokens, {len(s.prompt_lens)} sequences, "
        f"at most {s.max_num_seqs} at once",
        f"{'block':14}" + "".join(f"{block:4}" for block in range(s.num_blocks)),
    ]
    used_again, most = 0, 0
    for number, step in enumerate(s.steps):
        owners, taken = s.owners(number), s.taken(number)
        used_again += sum(before is not None for before in taken.values())
        most = max(most, sum(owner is not None for owner in owners))
        cells = "".join(f"{_mark(block, taken) + _owner(owner):>4}" for block, owner in enumerate(owners))
        freed = f"   frees {_list(step.freed)}" if step.freed else ""
        lines.append(f"{number:3} {_title(step):10}{cells}{freed}")
    left = sum(len(held.blocks) for held in s.steps[-1].held if held.seq not in s.steps[-1].freed)
    lines.append(
        f"{len(s.steps)} steps; {most} blocks in use at most, {used_again} taken that another had before, "
        f"{s.num_blocks - left} free at the end"
    )
    return "\n".join(lines)


def _mark(block: int, taken: dict[int, int | None]) -> str:
    return "" if block not in taken else "+" if taken[block] is None else "±"


def _owner(owner: int | None) -> str:
    return "." if owner is None else str(owner)


def _title(step: ScheduleStep) -> str:
    return f"prefill {step.seqs[0]}" if step.kind == "prefill" else "decode"


def _list(seqs: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, seqs)) or "none"


def _frame(schedule: Schedule, number: int, history: str) -> str:
    step = schedule.steps[number]
    started = {seq for earlier in schedule.steps[: number + 1] for seq in earlier.seqs}
    waiting = [seq for seq in range(len(schedule.prompt_lens)) if seq not in started]
    done = sorted({seq for earlier in schedule.steps[: number + 1] for seq in earlier.freed})
    head = (
        f"<p><b>step {number}: {_title(step)}</b> · a token for: {_list(step.seqs)} · waiting: {_list(waiting)} · "
        f"finished: {_list(done)}</p>"
    )
    columns = "display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start"
    now = _cursor(schedule, number)
    return (
        f'{head}<div style="{columns}">{_pool(schedule, number)}{_tables(schedule, step)}</div>'
        f'<p>Every block over all steps; the frame is step {number}</p><div style="overflow-x: auto">'
        f"{history.replace('<!-- now -->', now)}</div>"
    )


def _pool(schedule: Schedule, number: int) -> str:
    step, taken = schedule.steps[number], schedule.taken(number)
    filled = {
        block: (held, min(schedule.block_size, max(0, held.num_tokens - i * schedule.block_size)))
        for held in step.held
        for i, block in enumerate(held.blocks)
    }
    cells = []
    for block in range(schedule.num_blocks):
        held, tokens = filled.get(block, (None, 0))
        if held is None:
            cells.append(_cell(f"{block} · free", "", OUTLINE, "transparent"))
            continue
        border, note = OUTLINE, ""
        if block in taken:
            border = TAKEN
            note = "taken" if taken[block] is None else f"taken, was seq {taken[block]}'s"
        if held.seq in step.freed:
            border, note = FREED, "given back now"
        colour, share = _colour(held.seq), f"{tokens / schedule.block_size:.0%}"
        fill = f"linear-gradient(90deg, {colour} {share}, transparent {share})"
        cells.append(_cell(f"{block} · seq {held.seq}: {tokens}/{schedule.block_size}", note, border, fill))
    in_use = sum(len(held.blocks) for held in step.held)
    grid = "display: grid; grid-template-columns: repeat(auto-fill, 11.5em); gap: 3px"
    return (
        f'<div style="flex: 0 1 40em; min-width: 24em"><p>The pool of one layer, {in_use} of {schedule.num_blocks} '
        f'blocks in use</p><div style="{grid}">{"".join(cells)}</div></div>'
    )


def _cell(text: str, note: str, border: str, fill: str) -> str:
    return (
        f'<div style="{CELL}; border: {border}; background: {fill}">{text}'
        f'<div style="font-size: 10px">{note}</div></div>'
    )


def _tables(schedule: Schedule, step: ScheduleStep) -> str:
    width = max(len(held.blocks) for held in step.held)
    rows = "".join(_row(held, width, held.seq in step.freed) for held in step.held)
    numbers = "".join(f'<th style="{TD}">{i}</th>' for i in range(width))
    head = f'<tr><th></th>{numbers}<th style="{TD}">cached tokens</th><th></th></tr>'
    return f"<div><p>Block tables</p><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"


def _row(held: Held, width: int, freed: bool) -> str:
    style = f"{TD}; border: {OUTLINE}; background: {_colour(held.seq)}"
    cells = "".join(f'<td style="{style}">{block}</td>' for block in held.blocks)
    cells += "<td></td>" * (width - len(held.blocks))
    done = "finished" if freed else ""
    return f'<tr><td style="{TD}">seq {held.seq}</td>{cells}<td style="{TD}">{held.num_tokens}</td><td>{done}</td></tr>'


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
