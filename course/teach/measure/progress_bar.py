"""A bar for work of more than a second or two, in a notebook with a live front end; gone when the work is done."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from IPython import get_ipython
from IPython.display import HTML, display

from ..journal import entries as journal

REDRAW_SECONDS = 0.2


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of `total` parts are done: `with progress_bar(...) as done:`, and call done() after each part.

    Nothing is shown outside a notebook, nor in a run that no learner sees (make notebooks, nbval), whose outputs
    are compared.
    """
    if not is_watched():
        yield lambda: None
        return
    handle = display(_bar(label, 0, total), display_id=True)
    finished, drawn_at = 0, perf_counter()

    def done() -> None:
        nonlocal finished, drawn_at
        finished += 1
        if perf_counter() - drawn_at >= REDRAW_SECONDS:
            handle.update(_bar(label, finished, total))
            drawn_at = perf_counter()

    try:
        yield done
    finally:
        handle.update(HTML(""))


def is_watched() -> bool:
    """Whether a learner looks at this kernel. Kernels that record or compare keep no learner's record, either."""
    return hasattr(get_ipython(), "kernel") and journal.place() is not None


def _bar(label: str, finished: int, total: int) -> HTML:
    text = html.escape(f"{label}: {finished} of {total}")
    return HTML(f'<progress value="{finished}" max="{total}" aria-label="{text}"></progress> {text}')
