"""walk_reads: a host that launches ops ahead of its device, and waits where it reads a result. A model's clock."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from course.display.board import Board, Cell, Frame, Line, Panel
from roseinfer.arguments import counted

from ..lesson16.lane_charts import BUBBLE, COLOURS
from ..lesson16.step_lanes import COMPUTE, PLAN

NUM_OPS, HOST_MS, DEVICE_MS = 6, 2, 3
PROGRAMS = {
    "one read at the end": (NUM_OPS - 1,),
    "a read after every third op": range(2, NUM_OPS, 3),
    "a read after each op": range(NUM_OPS),
}
HOST, DEVICE = 0, 1  # rows
LAUNCH, WAIT, WORK, IDLE = "launch", "wait", "compute", "idle"
LOOK = {
    LAUNCH: Cell(0, 0, colour=COLOURS[PLAN], strength=0.75),
    WAIT: Cell(0, 0, hatched=True),
    WORK: Cell(0, 0, colour=COLOURS[COMPUTE], strength=0.9),
    IDLE: Cell(0, 0, colour=COLOURS[BUBBLE], strength=0.8),
}
PIXELS = 24  # per ms
STILL = NUM_OPS * HOST_MS  # ms: the frame for pages that do not move, in which the host begins to wait


class Bar(NamedTuple):
    """A bar of the timeline, from begin to end in ms."""

    row: int
    what: str
    op: int
    begin: int
    end: int


def run_program(reads: Collection[int]) -> list[Bar]:
    """Simulate host and device, if the host reads the results of the ops `reads`."""
    bars = []
    now = free_at = 0
    for number in range(NUM_OPS):
        bars.append(Bar(HOST, LAUNCH, number, now, now + HOST_MS))
        now += HOST_MS
        begin = max(now, free_at)
        if begin > free_at:
            bars.append(Bar(DEVICE, IDLE, number, free_at, begin))
        free_at = begin + DEVICE_MS
        bars.append(Bar(DEVICE, WORK, number, begin, free_at))
        if number in reads and free_at > now:
            bars.append(Bar(HOST, WAIT, number, now, free_at))
            now = free_at
    return bars


def walk_reads() -> Board:
    """Show the run of each of PROGRAMS, one frame per ms. The choice moves the reads."""
    runs = {name: run_program(reads) for name, reads in PROGRAMS.items()}
    frames = {name: [_frame(bars, now) for now in range(end_of(bars) + 1)] for name, bars in runs.items()}
    legend = [replace(look, text=what) for what, look in LOOK.items()]
    text = "\n".join(f"{name}: {_total(bars)}" for name, bars in runs.items())
    title = f"{counted(NUM_OPS, 'op')}; for each the host takes {HOST_MS} ms to launch it, the device {DEVICE_MS} ms"
    return Board(frames, f"{title}\n{text}", label="ms", shown=STILL, legend=legend, choice_label="program")


def end_of(bars: list[Bar]) -> int:
    return max(bar.end for bar in bars)


def _sum(bars: list[Bar], what: str) -> int:
    return sum(bar.end - bar.begin for bar in bars if bar.what == what)


def _total(bars: list[Bar]) -> str:
    return f"{end_of(bars)} ms, the host waits {_sum(bars, WAIT)} ms, the device is idle {_sum(bars, IDLE)} ms"


def _frame(bars: list[Bar], now: int) -> Frame:
    seen = [bar._replace(end=min(bar.end, now)) for bar in bars if bar.begin < now]
    cells = [
        replace(LOOK[bar.what], row=bar.row, column=bar.begin, text=_label(bar), width=bar.end - bar.begin)
        for bar in seen
    ]
    clock = Line((-0.15, now), (2.05, now))
    lanes = Panel(cells, rows=["host", "device"], unit="ms", cell=(PIXELS, 34), lines=[clock], size=11)
    return Frame([lanes, _queue(bars, now)], heading=f"{now} ms: {_says(bars, now)}")


def _label(bar: Bar) -> str:
    if bar.what == IDLE or bar.end == bar.begin:
        return ""
    return str(bar.op)


def _queue(bars: list[Bar], now: int) -> Panel:
    """Draw the ops that are launched, and that the device has not begun."""
    launched = {bar.op for bar in bars if bar.what == LAUNCH and bar.end <= now}
    begun = {bar.op for bar in bars if bar.what == WORK and bar.begin <= now}
    waiting = sorted(launched - begun)
    cells = [replace(LOOK[LAUNCH], column=place, text=number) for place, number in enumerate(waiting)]
    return Panel(cells, title="launched, and waiting for the device:", cell=(34, 26))


def _says(bars: list[Bar], now: int) -> str:
    if now == end_of(bars):
        return f"done; {_total(bars)}"
    parts = []
    for row, actor in ((HOST, "the host"), (DEVICE, "the device")):
        own = next((bar for bar in bars if bar.row == row and bar.begin <= now < bar.end), None)
        parts.append(f"{actor} {_doing(own)}")
    return ", ".join(parts)


def _doing(bar: Bar | None) -> str:
    if bar is None or bar.what == IDLE:
        return "has nothing to do"
    verb = {LAUNCH: "launches op", WAIT: "waits for the result of op", WORK: "computes op"}[bar.what]
    return f"{verb} {bar.op}"
