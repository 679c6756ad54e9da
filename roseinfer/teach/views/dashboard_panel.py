"""The dashboard's live part as HTML: where the run stands, the pool, and a row of means for each stage."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from roseinfer.display.table import MUTED, Table

from .live_batch import PHASES, RECENT, UNLABELLED

if TYPE_CHECKING:
    from .live_batch import Lane
    from .live_run import LiveRun

IDLE = f'<p style="{MUTED}">Nothing has run yet: press Start.</p>'
STYLE = """<style>
.rose-live { font-variant-numeric: tabular-nums; line-height: 1.6; }
.rose-live progress { width: 16em; margin-right: 0.8em; }
.rose-live th, .rose-live td { white-space: nowrap; }
</style>"""
FORMATS = {"tok/s": "{:,.0f}", "of the floor": "{:.1%}", "baseline tok/s": "{:,.0f}", "against it": "×{:.2f}"}


def render(run: LiveRun, baseline: Lane | None) -> str:
    """All of it, from the run's own records."""
    parts = [_where(run)]
    if run.current is not None:
        parts.append(_pool(run.current))
    if rows := rows_of(run, baseline):
        parts += [_table(rows, baseline), _caption(run, baseline)]
    return f'{STYLE}<div class="rose-live">{"".join(parts)}</div>'


def rows_of(run: LiveRun, baseline: Lane | None) -> list[tuple[Lane, int | None, str]]:
    """(lane, its steps to look at, or None for all, label) of each lane with steps; the pinned baseline comes first."""
    rows = [
        (lane, None, f"{'▶ ' if lane is run.current else ''}{lane.name}") for lane in run.lanes.values() if lane.steps
    ]
    if rows and baseline is not None:
        at = len(run.current.steps) or None  # None: a batch begins, and the baseline shows its end
        rows.insert(0, (baseline, at, f"baseline: {baseline.name}"))
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


def _table(rows: list[tuple[Lane, int | None, str]], baseline: Lane | None) -> str:
    import pandas as pd

    known = dict.fromkeys(PHASES.values())
    names = [*(known | dict.fromkeys(name for lane, at, _ in rows for name in lane.phase_seconds(at)))]
    names.append(names.pop(names.index(UNLABELLED)))  # behind the spans of a learner's own
    frame = pd.DataFrame([_cells(lane, at, label, names, baseline) for lane, at, label in rows])
    formats = {name: FORMATS.get(name, "{:,.2f}") for name in frame.columns[1:]}
    table = Table(frame, exact=["stage"], live=list(frame.columns[1:]), formats=formats, bars=["of the floor"])
    return f'<div style="overflow-x: auto">{table.to_html()}</div>'


def _cells(lane: Lane, at: int | None, label: str, names: list[str], baseline: Lane | None) -> dict[str, object]:
    phases = lane.phase_seconds(at)
    cells = {"stage": label, **{f"{name} ms": 1e3 * phases.get(name, float("nan")) for name in names}}
    cells |= {"step ms": 1e3 * lane.step_seconds(at), "tok/s": lane.tokens_per_second(at)}
    cells["of the floor"] = lane.floor_share(at)
    if baseline is not None and baseline is not lane:
        then = baseline.tokens_per_second(len(lane.steps))
        cells |= {"baseline tok/s": then, "against it": lane.tokens_per_second() / then}
    return cells


def _caption(run: LiveRun, baseline: Lane | None) -> str:
    machine = run.machine
    notes = [
        f"{run.settings}; means of the last {RECENT} steps; of the floor: the least time such "
        f"a step can take on {machine.name}, over the measured time",
    ]
    if machine.device.startswith("cuda"):
        notes.append("spans are host time: launching counts, and waiting only where the host waits")
    if baseline is not None:
        notes.append(f"baseline: {baseline.settings}; each stage is compared with it at the same step")
    notes += [f"{lane.name}: {lane.caveat}" for lane in run.lanes.values() if lane.caveat]
    return "".join(f'<div style="{MUTED}">{html.escape(note)}</div>' for note in notes)
