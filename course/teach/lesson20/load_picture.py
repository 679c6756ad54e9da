"""draw_load: requests of one second as rows on a timeline, at a rising arrival rate, and what the server achieves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from course.display.board import EDGE, Board, Cell, Frame, Panel
from roseinfer.display.figure import PALETTE
from roseinfer.simulator.replica import SimulatedRequest

from ..measure.progress_bar import progress_bar
from .simulated_load import TTFT_LIMIT, SimulatedLoad, simulate_load, ttft

RATES = tuple(range(5, 65, 5))
SHOWN_SECONDS, MEASURED_SECONDS = 1.0, 8.0  # of arrivals: that are drawn, and that the rates below are of
END = 2.4  # seconds on the timeline
ROW, TENTH = 6, 33  # pixels of a request, and of a tenth of a second
QUEUED = Cell(0, 0, "queued", EDGE, strength=0.45)
LATE = Cell(0, 0, f"queued, first token after more than {TTFT_LIMIT * 1000:.0f} ms", PALETTE[3], strength=0.7)
PREFILL = Cell(0, 0, "prefill", PALETTE[0], strength=0.9)
DECODE = Cell(0, 0, "decode", PALETTE[2], strength=0.55)
LEGEND = (QUEUED, LATE, PREFILL, DECODE)


def draw_load() -> Board:
    """Draw a frame per arrival rate: a second's requests, each as a row; the queue; answers and good answers.

    The engine's own scheduler runs them, on eight slots, with stated step times: exact, and the same everywhere.
    """
    measured, shown = [], []
    with progress_bar("simulated loads", len(RATES)) as done:
        for rate in RATES:
            measured.append(simulate_load(rate, MEASURED_SECONDS))
            shown.append(simulate_load(rate, SHOWN_SECONDS))
            done()
    frames = [
        Frame([_timeline(one), _queue(one), _rates(measured, number)], _heading(measured[number]))
        for number, one in enumerate(shown)
    ]
    text = "\n".join(["a server with eight slots, simulated:", *map(_facts, measured)])
    return Board(frames, text, label="rate", shown=_past_the_knee(measured), legend=LEGEND)


def _past_the_knee(loads: Sequence[SimulatedLoad]) -> int:
    """Find the first frame in which less than a tenth of the answers are good."""
    return next(number for number, one in enumerate(loads) if one.goodput < one.throughput / 10)


def _heading(load: SimulatedLoad) -> str:
    return (
        f"in {load.seconds:g} s {load.arrival_rate:.1f} requests arrive per second: {load.throughput:.1f} answered per "
        f"second, {load.goodput:.1f} of them good; p99 of TTFT {1000 * load.p99_ttft:,.0f} ms"
    )


def _facts(load: SimulatedLoad) -> str:
    return f"  {_heading(load)}"


def _timeline(load: SimulatedLoad) -> Panel:
    cells = [cell for row, one in enumerate(load.requests) for cell in _request(row, one)]
    ticks = {at: f"{at / 10:g} s" for at in range(0, 25, 4)}
    title = f"One second of arrivals on its own: {len(load.requests)} requests, a row for each"
    return Panel(cells, title, cell=(TENTH, ROW), ticks=ticks, room=(10 * END, 1))


def _request(row: int, one: SimulatedRequest) -> Iterator[Cell]:
    """Draw the parts of a request, from left to right, in tenths of a second."""
    times = one.times
    assert times.has_ended, "it has ended"
    arrival, first, end = one.arrival.seconds, times.steps[0].finish, one.end
    waited = LATE if ttft(one) > TTFT_LIMIT else QUEUED
    tip = f"TTFT {1000 * ttft(one):.0f} ms"
    parts = [(arrival, times.first_scheduled, waited), (times.first_scheduled, first, PREFILL), (first, end, DECODE)]
    for begin, stop, look in parts:
        if stop > begin and begin < END:
            width = 10 * (min(stop, END) - begin)
            yield replace(look, row=row, column=10 * begin, text="", outline="none", width=width, tooltip=tip)


def _queue(load: SimulatedLoad) -> Panel:
    """Draw how many requests wait, every tenth of a second."""
    cells = []
    for number in range(round(10 * END)):
        at = number / 10
        waiting = sum(one.arrival.seconds <= at < one.times.first_scheduled for one in load.requests)
        strength = min(0.9, waiting / 40)
        cells.append(Cell(0, number, waiting or "", EDGE if waiting else "", strength=strength))
    return Panel(cells, "Requests in the queue, every tenth of a second", cell=(TENTH, 20), size=11)


def _rates(loads: Sequence[SimulatedLoad], now: int) -> Panel:
    """Draw a column for each rate; the frame's own one is marked."""
    cells = []
    for number, load in enumerate(loads):
        edge = PALETTE[6] if number == now else ""
        good = load.goodput / load.throughput
        cells += [
            Cell(0, number, f"{load.arrival_rate:.0f}", outline=edge),
            Cell(1, number, f"{load.throughput:.0f}", DECODE.colour, strength=0.15, outline=edge),
            Cell(2, number, f"{load.goodput:.0f}", (DECODE if good > 0.5 else LATE).colour, strength=0.6, outline=edge),
        ]
    title = f"Per second, of {MEASURED_SECONDS:.0f} s of arrivals at each rate"
    return Panel(cells, title, ("arrive", "answered", "good"), cell=(58, 22), size=12)
