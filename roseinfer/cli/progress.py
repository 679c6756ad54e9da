"""Progress of a run and the time that is left: a bar in a terminal, elsewhere a line every few seconds; on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING

from roseinfer.arguments import counted

if TYPE_CHECKING:
    from roseinfer.profiling.progress import OnProgress, RunProgress

EVERY_S = 5.0  # between two lines where there is no terminal
REDRAW_S = 1.0  # of the bar, whose clock goes on during a run
# What a narrow terminal cuts off is the end, so the time that is left stands before the run's name.
LAYOUT = "{n_fmt}/{total_fmt} {elapsed}{postfix} |{bar}| {desc}"
NOT_COUNTED = "{elapsed} {desc}"  # the layout until the number of runs is known
WORTH_SAYING_S = 10.0  # of an estimate


@contextmanager
def shown_progress(doing: str = "loading the model") -> Iterator[OnProgress]:
    """Yield a callback that shows progress. doing: what is done until the first report."""
    from tqdm.auto import tqdm

    is_terminal = bool(sys.stderr and sys.stderr.isatty())
    bar = tqdm(desc=doing, bar_format=NOT_COUNTED, leave=False, dynamic_ncols=True, disable=not is_terminal)
    began, last, is_said = perf_counter(), doing, False

    def on_progress(p: RunProgress) -> None:
        nonlocal last, is_said
        if not is_said and p.repeat >= 0 and p.seconds_left and p.seconds_left >= WORTH_SAYING_S:
            is_said = True
            runs = counted(p.runs_total - p.runs_done, "run")
            say(f"estimate, from the warm-up: {duration(p.seconds_left)} for {runs}")
        left = "" if p.seconds_left is None else f"{duration(p.seconds_left)} left"
        done = f" ({p.runs_done} of {p.runs_total} runs done{left and f', {left}'})" if p.runs_total else ""
        last = described(p) + done
        if is_terminal:
            bar.total, bar.n = p.runs_total or None, p.runs_done
            bar.bar_format = LAYOUT if p.runs_total else NOT_COUNTED
            bar.set_description_str(described(p), refresh=False)
            bar.set_postfix_str(left)

    def show_again() -> None:
        bar.refresh() if is_terminal else say(f"{perf_counter() - began:5.0f} s  {last}")

    with bar, _every(REDRAW_S if is_terminal else EVERY_S, show_again):
        yield on_progress


def described(p: RunProgress) -> str:
    speed = f", {p.tokens / p.seconds:,.0f} tok/s" if p.seconds else ""
    return f"{p.phase}: {p.name}{speed}"


def duration(seconds: float) -> str:
    """Say how long: "about 40 s", "about 12 min", "about 3.5 h"."""
    if seconds < 100:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:,.1f} h"


def say(text: str) -> None:
    from tqdm.auto import tqdm

    tqdm.write(text, file=sys.stderr)  # above the bar, if there is one
    sys.stderr.flush()


@contextmanager
def _every(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Call act from another thread, every so many seconds, until the block is left."""
    over = Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
