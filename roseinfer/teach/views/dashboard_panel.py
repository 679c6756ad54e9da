"""The dashboard's live part as HTML: where the run stands, the pool, and a row of means for each stage."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from roseinfer.display.table import BAR_COLOUR, MUTED

from .live_batch import PHASES, RECENT, UNLABELLED

if TYPE_CHECKING:
    from .live_batch import Lane
    from .live_run import LiveRun

IDLE = f'<p style="{MUTED}">Nothing has run yet: press Start.</p>'
STYLE = """<style>
.rose-live { font-variant-numeric: tabular-nums; line-height: 1.6; }
.rose-live .meter { display: flex; align-items: center; gap: 0.8em; }
.rose-live .meter > span:first-child { flex: none; width: 16em; height: 0.9em; border: 1px solid rgba(128,128,128,.6); }
.rose-live table { border-collapse: collapse; margin: 0.5em 0; }
.rose-live th, .rose-live td { text-align: right; padding: 2px 8px; white-space: nowrap; font-weight: normal; }
.rose-live thead th { font-weight: bold; border-bottom: 1px solid rgba(128,128,128,.6); }
.rose-live th:first-child { text-align: left; }
</style>"""


def render(run: LiveRun, baseline: Lane | None) -> str:
    """All of it, from the run's own records; a row for the pinned baseline comes first."""
    lanes = [lane for lane in run.lanes.values() if lane.steps]
    parts = [_where(run)]
    if run.current is not None:
        parts.append(_pool(run.current))
    if lanes:
        parts += [_table(lanes, run.current, baseline), _caption(run, lanes, baseline)]
    return f'{STYLE}<div class="rose-live">{"".join(parts)}</div>'


def _where(run: LiveRun) -> str:
    lane = run.current
    if lane is None:
        return f"<div>{html.escape(run.status)}</div>"
    done = len(lane.steps)
    label = f"{run.status}: {lane.name}, decode step {done} of {lane.num_steps}"
    return _meter(label, done / lane.num_steps)


def _pool(lane: Lane) -> str:
    held, blocks = lane.blocks_held, lane.num_blocks
    free = "every block is free" if held == 0 else f"{blocks - held} free"
    return _meter(f"blocks held: {held} of {blocks}, {free}", held / blocks)


def _meter(label: str, share: float) -> str:
    bar = f'<span style="display: block; height: 100%; width: {share:.1%}; background: {BAR_COLOUR}"></span>'
    return f'<div class="meter"><span aria-hidden="true">{bar}</span><span>{html.escape(label)}</span></div>'


def _table(lanes: list[Lane], current: Lane, baseline: Lane | None) -> str:
    rows = [(lane, None, f"{'▶ ' if lane is current else ''}{lane.name}") for lane in lanes]
    if baseline is not None:
        at = len(current.steps) or None  # None: a batch begins, and the baseline shows its end
        rows.insert(0, (baseline, at, f"baseline: {baseline.name}"))
    known = dict.fromkeys(PHASES.values())
    names = [*(known | dict.fromkeys(name for lane, at, _ in rows for name in lane.phase_seconds(at)))]
    names.append(names.pop(names.index(UNLABELLED)))  # behind the spans of a learner's own
    heads = ["stage", *(f"{name} ms" for name in names), "step ms", "tok/s", "of the floor"]
    heads += ["baseline tok/s", "against it"] if baseline is not None else []
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "".join(_row(lane, at, label, names, baseline) for lane, at, label in rows)
    return (
        '<div style="overflow-x: auto"><table aria-label="Time of a decode step by span, and its speed">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(lane: Lane, at: int | None, label: str, names: list[str], baseline: Lane | None) -> str:
    phases, step = lane.phase_seconds(at), lane.step_seconds(at)
    cells = [f'<th scope="row">{html.escape(label)}</th>']
    cells += [_number(f"{1e3 * phases[n]:.2f}", phases[n] / step) if n in phases else _number("") for n in names]
    cells.append(_number(f"{1e3 * step:.2f}"))
    cells.append(_number(f"{lane.tokens_per_second(at):,.0f}"))
    cells.append(_number(f"{lane.floor_share(at):.1%}", lane.floor_share(at)))
    if baseline is not None and baseline is not lane:
        then = baseline.tokens_per_second(len(lane.steps))
        cells += [_number(f"{then:,.0f}"), _number(f"×{lane.tokens_per_second() / then:.2f}")]
    return f"<tr>{''.join(cells)}</tr>"


def _number(text: str, share: float = 0.0) -> str:
    """A cell with a thin bar behind its number."""
    width = f"{100 * min(max(share, 0.0), 1.0):.0f}%"
    bar = f"linear-gradient(90deg, {BAR_COLOUR} {width}, transparent {width})"
    return f'<td style="background: {bar}">{text}</td>' if share else f"<td>{text}</td>"


def _caption(run: LiveRun, lanes: list[Lane], baseline: Lane | None) -> str:
    machine = run.machine
    notes = [
        f"{run.settings}; means of the last {RECENT} steps, bars: share of the step; of the floor: the least time such "
        f"a step can take on {machine.name}, over the measured time",
    ]
    if machine.device.startswith("cuda"):
        notes.append("spans are host time: launching counts, and waiting only where the host waits")
    if baseline is not None:
        notes.append(f"baseline: {baseline.settings}; each stage is compared with it at the same step")
    notes += [f"{lane.name}: {lane.caveat}" for lane in lanes if lane.caveat]
    return "".join(f'<div style="{MUTED}">{html.escape(note)}</div>' for note in notes)
