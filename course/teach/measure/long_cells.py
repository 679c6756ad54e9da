"""Long cells: for a learner, a cell of more than a second counts its seconds, and an interrupt is told in one line."""

from __future__ import annotations

import threading
from contextvars import copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from IPython.display import HTML, display

from .progress_bar import is_watched

if TYPE_CHECKING:
    from types import TracebackType

    from IPython.core.interactiveshell import InteractiveShell

SECOND = 1.0
INTERRUPTED = "KeyboardInterrupt: this cell was interrupted. Run it again to start over."


def install() -> None:
    """Count seconds from the next cell on. Do nothing outside a notebook, and in a run that is recorded or compared."""
    if not is_watched():
        return
    shell = get_ipython()
    shell.events.register("pre_run_cell", _sign.begin)
    shell.events.register("post_run_cell", _sign.end)
    shell.set_custom_exc((KeyboardInterrupt,), _one_line)


class Sign:
    """Counts the seconds of a cell in its output, from the first second on. The sign goes when the cell is done."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, info: Any = None) -> None:
        self._over.clear()
        # IPython keeps in the context which cell an output belongs to.
        self._thread = threading.Thread(target=copy_context().run, args=(self._count,), daemon=True)
        self._thread.start()

    def end(self, result: Any = None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _count(self) -> None:
        began, handle = perf_counter(), None
        while not self._over.wait(SECOND):
            text = HTML(f"<i>running for {perf_counter() - began:.0f} s; Kernel › Interrupt stops it</i>")
            if handle is None:
                handle = display(text, display_id=True)
            else:
                handle.update(text)
        if handle is not None:
            handle.update(HTML(""))


_sign = Sign()


def _one_line(
    shell: InteractiveShell, kind: type[BaseException], error: BaseException, stack: TracebackType, **offset: Any
) -> None:
    shell._showtraceback(kind, error, [INTERRUPTED])
