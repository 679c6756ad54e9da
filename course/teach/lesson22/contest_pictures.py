"""Pictures of lesson 22: a workload's requests, the slots of a run over its steps, and where a run's time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from course.contest.workload import Workload, workload_of
from course.display.board import Board, Cell, Frame, Panel
from roseinfer.arguments import counted
from roseinfer.display.figure import PALETTE
from roseinfer.display.table import Table
from roseinfer.models import Model

from ..views.rows_table import table
from .contest_run import SEED, SLOTS, ContestRun, record_contest

WIDEST_TOKEN, WIDEST_STEP = 8, 20  # pixels
EVERY = 4  # steps from one frame to the next
KINDS = {"plain": PALETTE[0], "shared": PALETTE[2], "repeating": PALETTE[1]}
LEGEND = [Cell(0, 0, colour=colour, tooltip=kind, text=kind, width=1) for kind, colour in KINDS.items()]
PROMPT, OUTPUT = 0.2, 0.75  # strengths of their colours
BANDS = ("a prompt begins", "all 8 slots", "4 to 7 slots", "1 to 3 slots")


def draw_workload(workload: Workload | str = "mixed", seed: int = SEED) -> Board:
    """Draw a line for each request, in the order of arrival: pale its prompt, strong the tokens that it asks for."""
    workload = workload_of(workload) if isinstance(workload, str) else workload
    requests = workload.draw(seed)
    cells = []
    for row, one in enumerate(requests):
        colour, size = KINDS[one.kind], len(one.prompt)
        said = f"request {row}, {one.kind}: prompt of {size}, {one.max_tokens} new tokens"
        cells.append(Cell(row, 0, colour=colour, strength=PROMPT, width=size, tooltip=said))
        cells.append(Cell(row, size, colour=colour, strength=OUTPUT, width=one.max_tokens, tooltip=said))
    panel = Panel(cells, rows=range(len(requests)), unit="tokens", cell=(WIDEST_TOKEN, 14))
    kinds = Counter(one.kind for one in requests)
    told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    text = f"workload {workload.name}: {counted(len(requests), 'request')}, {told}; {workload.num_tokens} new tokens"
    says = "Pale: the prompt. Strong: the tokens that are asked for."
    return Board([Frame([panel], says=says)], text, legend=LEGEND)


def draw_contest(entries: Mapping[str, type | None], model: Model, workload: Workload | str = "mixed") -> Board:
    """Draw slots over steps for each entry, on the same requests.

    entries: name -> class, None for the baseline; the first one is shown first. Raises ValueError as record_contest.
    """
    runs = {name: record_contest(entry, model, workload) for name, entry in entries.items()}
    return slots_picture(runs)


def slots_picture(runs: Mapping[str, ContestRun]) -> Board:
    most = max(run.num_steps for run in runs.values())
    facts = [f"{name}: {counted(run.num_steps, 'step')}, {run.num_empty} empty slots over all of them" for name, run in
             runs.items()]  # fmt: skip
    frames = {name: _frames(name, run, most) for name, run in runs.items()}
    return Board(frames, "\n".join(facts), label=f"{EVERY} steps", legend=LEGEND, choice_label="run")


def _frames(name: str, run: ContestRun, most: int) -> list[Frame]:
    ends = [*range(EVERY, run.num_steps, EVERY), run.num_steps]
    return [_frame(name, run, end, most) for end in ends]


def _frame(name: str, run: ContestRun, end: int, most: int) -> Frame:
    """Draw the first `end` steps."""
    cells = []
    for stay in run.stays():
        if stay.first < end:
            one, last = run.requests[stay.request], min(stay.last + 1, end)
            said = f"request {stay.request}, {one.kind}: {one.max_tokens} new tokens"
            cells.append(
                Cell(stay.slot, stay.first, stay.request, KINDS[one.kind], width=last - stay.first, tooltip=said)
            )
    now = run.made[end - 1]
    waiting = len(run.requests) - len({request for step in run.made[:end] for request in step})
    tokens = sum(sum(step.values()) for step in run.made[:end])
    heading = f"{name}, step {end} of {run.num_steps}: {len(now)} of {SLOTS} slots in use, {waiting} requests queued"
    rows = [f"slot {slot}" for slot in range(SLOTS)]
    panel = Panel(cells, rows=rows, unit="steps", cell=(WIDEST_STEP, 24), size=11, room=(most, SLOTS))
    return Frame([panel], heading, f"{tokens} tokens so far")


def profile_contest(entry: type | None, model: Model, workload: Workload | str = "mixed") -> Table:
    """Count a run's steps, their tokens and time, by how many slots they use; steps that compute a prompt are apart."""
    run = record_contest(entry, model, workload)
    steps, tokens = Counter[str](), Counter[str]()
    seconds = dict.fromkeys(BANDS, 0.0)
    begun: set[int] = set()
    for step, took in zip(run.made, run.seconds, strict=True):
        band = _band(len(step), begins=not begun.issuperset(step))
        begun.update(step)
        steps[band] += 1
        tokens[band] += sum(step.values())
        seconds[band] += took
    rows = [
        {
            "in use": band,
            "steps": steps[band],
            "tokens": tokens[band],
            "ms per step": 1000 * seconds[band] / steps[band] if steps[band] else 0.0,
            "of the time": seconds[band] / sum(run.seconds),
            "tokens per second": tokens[band] / seconds[band] if seconds[band] else 0.0,
        }
        for band in BANDS
    ]
    formats = {"ms per step": "{:.2f}", "of the time": "{:.0%}", "tokens per second": "{:,.0f}"}
    live = ["ms per step", "of the time", "tokens per second"]
    return table(rows, live, f"one run of the workload: {counted(run.num_steps, 'step')}", formats=formats)


def _band(num_in_use: int, begins: bool) -> str:
    if begins:
        return BANDS[0]
    return BANDS[1] if num_in_use == SLOTS else BANDS[2] if num_in_use > 3 else BANDS[3]
