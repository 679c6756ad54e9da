"""Memory that a cell freed is given back when the cell ends."""

import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from course.teach.measure import freed_memory

PAGE = 4096
SIZE, NUMBER = 2**16, 1024  # below the size from which glibc maps each allocation by itself: 64 MiB of them


def resident() -> int:
    """Bytes of this process in memory."""
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.skipif(freed_memory._malloc_trim() is None, reason="glibc's own")
def test_what_was_freed_goes_back_to_the_system():
    held = [bytearray(SIZE) for _ in range(NUMBER)]
    keeper = bytearray(SIZE)  # above them: the heap cannot shrink from its end
    del held
    before = resident()
    freed_memory.give_back()
    assert before - resident() > 0.5 * SIZE * NUMBER
    assert len(keeper) == SIZE


def test_it_runs_after_each_cell_however_often_it_was_installed(monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr(freed_memory, "get_ipython", lambda: shell)
    freed_memory.install()
    freed_memory.install()
    assert shell.events.callbacks["post_run_cell"].count(freed_memory.give_back) == 1


def test_outside_a_notebook_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(freed_memory, "get_ipython", lambda: None)
    freed_memory.install()


def test_on_another_system_nothing_happens(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(freed_memory.ctypes, "CDLL", lambda name: pytest.fail("Windows wants the name of a library"))
    freed_memory._malloc_trim.cache_clear()
    freed_memory.give_back()
    freed_memory._malloc_trim.cache_clear()
