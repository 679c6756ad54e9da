"""What the dashboard shows of a run as HTML: where it stands with its pool, and a table with a row for each stage."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from roseinfer.display.table import MUTED, Table

if TYPE_CHECKING:
    from .live_batch import Lane
    from .live_run import LiveRun

IDLE = f'<p style="{MUTED}">Nothing has run yet: press Start.</p>'
TEXT = "table of the run: step ms, tok/s and the share of the floor, by stage"
STYLE = """<style>
.rose-live { font-variant-numeric: tabular-nums; line-height: 1.6; }
.rose-live progress { width: 16em; margin-right: 0.8em; }
.rose-live th, .rose-live td { white-space: nowrap; padding: 2px 10px; }
</style>"""
AGAINST = "against baseline"
FORMATS = {"step ms": "{:,.2f}", "tok/s": "{:,.0f}", "of the floor": "{:.1%}", AGAINST: "×{:.2f}"}


class RunTable:
    """Table with a row for each stage, as of the last `show`; empty before.

    It is an output, not a widget, so it stays in the saved notebook.
    """

    def __init__(self) -> None:
        self._html = ""

    def __repr__(self) -> str:
        return TEXT

    def _repr_html_(self) -> str:
        return self._html

    def show(self, run: LiveRun, rows: list[tuple[Lane, str]], baseline: Lane | None) -> None:
        self._html = _styled(_table(rows, baseline) + _caption(run, baseline))


def progress(run: LiveRun) -> str:
    """Show as HTML how far the run is, and how much of its pool is in use."""
    return _styled(_where(run) + (_pool(run.current) if run.current else ""))


def _styled(parts: str) -> str:
    return f'{STYLE}<div class="rose-live">{parts}</div>'


def rows_of(run: LiveRun, baseline: Lane | None) -> list[tuple[Lane, str]]:
    """List each lane that has steps with its label. The pinned baseline comes first."""
    rows = [(lane, f"{'▶ ' if lane is run.current else ''}{lane.name}") for lane in run.lanes.values() if lane.steps]
    if rows and baseline is not None:
        rows.insert(0, (baseline, f"baseline: {baseline.name}"))
    return rows


def _where(run: LiveRun) -> str:
    lane = run.current
    if lane is None:
        return f"<div>{html.escape(run.status)}</div>"
    done = len(lane.steps)
    return _progress(done, lane.num_steps, f"{run.status}: {lane.name}, decode step {done} of {lane.num_steps}")


def _pool(lane: Lane) -> str:
    held, blocks = lane.blocks_held, lane.num_blocks
    free = "every block is free" if held == 0 else f"{blocks - held} free"
    return _progress(held, blocks, f"blocks held: {held} of {blocks}, {free}")


def _progress(value: int, whole: int, label: str) -> str:
    return f'<div><progress value="{value}" max="{whole}" aria-hidden="true"></progress>{html.escape(label)}</div>'


def _table(rows: list[tuple[Lane, str]], baseline: Lane | None) -> str:
    """Format the rows as HTML, without a column for each phase: these would not fit the page and are in the chart."""
    import pandas as pd

    frame = pd.DataFrame([_cells(lane, label, baseline) for lane, label in rows])
    formats = {name: FORMATS[name] for name in frame.columns[1:]}
    return Table(frame, exact=["stage"], live=list(formats), formats=formats, bars=["of the floor"]).to_html()


def _cells(lane: Lane, label: str, baseline: Lane | None) -> dict[str, object]:
    speed = lane.tokens_per_second()
    cells = {"stage": label, "step ms": 1e3 * lane.step_seconds(), "tok/s": speed, "of the floor": lane.floor_share()}
    if baseline is not None:
        compared = lane.finished and baseline.finished and lane is not baseline  # else of other contexts
        cells[AGAINST] = speed / baseline.tokens_per_second() if compared else float("nan")
    return cells


def _caption(run: LiveRun, baseline: Lane | None) -> str:
    machine = run.machine
    notes = [
        f"{run.settings}; by each stage's median step so far; of the floor: the least time such "
        f"a step can take on {machine.name}, over the measured time",
    ]
    if machine.device.startswith("cuda"):
        notes.append("spans are host time: launching counts, and waiting only where the host waits")
    if baseline is not None:
        pinned = f"baseline: {baseline.settings}, as it stood when it was pinned"
        notes.append(f"{pinned}; what has done all its steps is compared, if the baseline has")
    notes += [f"{lane.name}: {lane.caveat}" for lane in run.lanes.values() if lane.caveat]
    return "".join(f'<div style="{MUTED}">{html.escape(note)}</div>' for note in notes)
