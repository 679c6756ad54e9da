"""A server ends within its limits whatever hangs, tells what it cut off, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import DEADLINE
from served_process import Served, serving

PROC = Path("/proc")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PROC.exists(), reason="finds processes in /proc")]

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = {"prompt": "Return a new", "max_tokens": 450, "ignore_eos": True}
HELLO = {"messages": [{"role": "user", "content": "If"}]}


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    found = []
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        if int(rest.split()[1]) == pid:
            found.append(int(stat.parent.name))
    return found


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Processes are stopped, and gone when the block ends."""
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
        deadline = time.monotonic() + DEADLINE
        while any((PROC / str(pid)).exists() for pid in pids):
            assert time.monotonic() < deadline, "a stopped process was left behind"
            time.sleep(0.02)
    finally:
        for pid in pids:
            if (PROC / str(pid)).exists():
                os.kill(pid, signal.SIGKILL)


@pytest.mark.nightly  # test_waits.py ends a server in this process while its template is stopped
@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_stopped_template_holds_up_no_end(folder, num_signals):
    drain = "1" if num_signals == 1 else "600"
    with serving(folder, "--drain-seconds", drain) as served, ThreadPoolExecutor() as pool:
        with stopped(children(served.process.pid)):
            chat = pool.submit(served.ask, CHAT, HELLO)
            served.wait_for(lambda: served.ask("/live")[1]["num_requests"] == 1)
            assert served.ask("/health")[0] == 200
            send(served, num_signals)
            assert "1 request cut off" in served.ended()
            status, answer = chat.result(DEADLINE)
            assert status == 503 and "shutting down" in answer["error"]["message"]


@pytest.mark.parametrize("num_signals", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_stopped_rank_fails_health_and_holds_up_no_end(num_signals):
    drain = "1" if num_signals == 1 else "600"
    flags = "--tensor-parallel", "2", "--step-seconds", "1", "--drain-seconds", drain
    with serving("tiny", *flags) as served, ThreadPoolExecutor() as pool:
        with stopped(children(served.process.pid)):
            answers = [pool.submit(served.ask, TEXT, LONG) for _ in range(2)]
            served.wait_for(lambda: served.ask("/health") == (503, {"status": "stuck"}))
            send(served, num_signals)
            assert "2 requests cut off" in served.ended()
            assert all(one.result(DEADLINE)[0] == 503 for one in answers)


def send(served: Served, num_signals: int) -> None:
    for _ in range(num_signals):
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # two at once may be one


@pytest.mark.nightly  # test_serve_command.py has one without a line for each request
def test_a_terminal_that_has_gone_holds_up_no_end():
    with serving("tiny", "--access-log") as served:
        served.process.stderr.close()
        assert served.ask("/health")[0] == 200
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(DEADLINE) == 0
