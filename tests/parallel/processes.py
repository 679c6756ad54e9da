"""Processes that a test waits for."""

from __future__ import annotations

from time import perf_counter, sleep

SECONDS = 30


def wait_until_gone(pid: int) -> None:
    """Fails for one that is still there after SECONDS."""
    deadline = perf_counter() + SECONDS
    while is_there(pid):
        assert perf_counter() < deadline, f"process {pid} is still there"
        sleep(0.05)


def is_there(pid: int) -> bool:
    """One that has ended and that its parent has not yet asked for is not there."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
