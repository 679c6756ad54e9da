"""A bar for requests that run: in a terminal or a notebook, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

REDRAW_SECONDS = 0.1


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """`with progress_bar(...) as show:`, and show(requests done, tokens made) as often as you like. Gone after it."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (shown and total and (console.is_terminal or console.is_jupyter)):
        yield lambda num_done, num_tokens: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}")
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, auto_refresh=False)
    task, begun = bar.add_task("", total=total, speed=""), perf_counter()
    drawn = begun

    def show(num_done: int, num_tokens: int) -> None:
        nonlocal drawn
        now = perf_counter()
        if now - drawn >= REDRAW_SECONDS:
            drawn = now
            bar.update(task, completed=num_done, speed=f"{num_tokens / (now - begun):,.0f} tok/s", refresh=True)

    with bar:
        yield show
