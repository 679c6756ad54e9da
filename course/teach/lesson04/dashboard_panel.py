"""What the dashboard shows of a run as HTML: where it stands, and a table with a row for each stage."""

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
FORMATS = {"step ms": "{:,.2f}", "tok/s": "{:,.0f}", "of the floor": "{:.1%}"}


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

    def show(self, run: LiveRun) -> None:
        self._html = _styled(_table(run) + _caption(run))


def progress(run: LiveRun) -> str:
    """Show as HTML how far the run is."""
    lane = run.current
    if lane is None:
        return _styled(f"<div>{html.escape(run.status)}</div>")
    done = len(lane.steps)
    label = html.escape(f"{run.status}: {lane.name}, decode step {done} of {lane.num_steps}")
    bar = f'<progress value="{done}" max="{lane.num_steps}" aria-hidden="true"></progress>'
    return _styled(f"<div>{bar}{label}</div>")


def _styled(parts: str) -> str:
    return f'{STYLE}<div class="rose-live">{parts}</div>'


def _table(run: LiveRun) -> str:
    """Format the lanes as HTML, without a column for each phase: these would not fit the page and are in the chart."""
    import pandas as pd

    frame = pd.DataFrame([_cells(lane, run) for lane in run.shown])
    return Table(frame, exact=["stage"], live=list(FORMATS), formats=FORMATS, bars=["of the floor"]).to_html()


def _cells(lane: Lane, run: LiveRun) -> dict[str, object]:
    name = f"{'▶ ' if lane is run.current else ''}{lane.name}"
    times = {"step ms": 1e3 * lane.step_seconds(), "tok/s": lane.tokens_per_second()}
    return {"stage": name, **times, "of the floor": lane.floor_share()}


def _caption(run: LiveRun) -> str:
    machine = run.machine
    notes = [
        f"{run.settings}; by each stage's median step so far; of the floor: the least time such "
        f"a step can take on {machine.name}, over the measured time",
    ]
    if machine.device.startswith("cuda"):
        notes.append("spans are host time: launching counts, and waiting only where the host waits")
    notes += [f"{lane.name}: {lane.caveat}" for lane in run.lanes.values() if lane.caveat]
    return "".join(f'<div style="{MUTED}">{html.escape(note)}</div>' for note in notes)
