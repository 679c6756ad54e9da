"""How far a run is and how long it will take: a bar in a terminal, elsewhere a line every few seconds; on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roseinfer.profiling.progress import OnProgress, RunProgress

EVERY_S = 5.0  # between two lines where there is no terminal
WORTH_SAYING_S = 10.0  # of an estimate


@contextmanager
def shown_progress(doing: str = "loading the model") -> Iterator[OnProgress]:
    """doing: what is done until the first report."""
    from rich.console import Console

    console = Console(stderr=True)
    with (_bar(console, doing) if console.is_terminal else _lines(doing)) as show:
        is_said = False

        def on_progress(p: RunProgress) -> None:
            nonlocal is_said
            if not is_said and p.repeat >= 0 and (p.seconds_left or 0) >= WORTH_SAYING_S:
                is_said = True
                text = f"estimate, from the warm-up: {duration(p.seconds_left)} for {p.runs_total - p.runs_done} runs"
                console.print(text, highlight=False) if console.is_terminal else say(text)
            show(p)

        yield on_progress


def described(p: RunProgress) -> str:
    speed = f", {p.tokens / p.seconds:,.0f} tok/s" if p.seconds else ""
    return f"{p.phase}: {p.name}{speed}"


def duration(seconds: float) -> str:
    """ "about 40 s", "about 12 min", "about 3.5 h"."""
    if seconds < 100:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 6000 else f"about {seconds / 3600:,.1f} h"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _bar(console: object, doing: str) -> Iterator[OnProgress]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None, left="")

        def show(p: RunProgress) -> None:
            left = "" if p.seconds_left is None else f"{duration(p.seconds_left)} left"
            bar.update(task, description=described(p), completed=p.runs_done, total=p.runs_total or None, left=left)

        yield show


@contextmanager
def _lines(doing: str) -> Iterator[OnProgress]:
    """The last report, every few seconds, whatever runs in between."""
    began, over, last = perf_counter(), Event(), [doing]

    def show(p: RunProgress) -> None:
        left = "" if p.seconds_left is None else f", {duration(p.seconds_left)} left"
        done = f" ({p.runs_done} of {p.runs_total} runs done{left})" if p.runs_total else ""
        last[0] = described(p) + done

    def tell() -> None:
        while not over.wait(EVERY_S):
            say(f"{perf_counter() - began:5.0f} s  {last[0]}")

    thread = Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield show
    finally:
        over.set()
        thread.join()
