"""A server ends within its limits whatever hangs, tells what it cut off, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from running import DEADLINE
from served_process import ask, serving

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


def status(url: str) -> tuple[int, str]:
    """Return the status code and the body of /health."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=DEADLINE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def told(url: str, path: str, body: dict) -> tuple[int, str]:
    try:
        with ask(url + path, body) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for_accepted(url: str, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while f'"num_requests": {count}' not in urllib.request.urlopen(f"{url}/live", timeout=DEADLINE).read().decode():
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def ended(process: subprocess.Popen) -> str:
    """What it said as it ended, in time and with status 0."""
    said = process.communicate(timeout=DEADLINE)[1]
    assert process.returncode == 0, said
    return said


@pytest.mark.nightly  # test_waits.py ends a server in this process while its template is stopped
@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_stopped_template_holds_up_no_end(folder, num_signals):
    drain = "1" if num_signals == 1 else "600"
    with serving(folder, "--drain-seconds", drain) as (process, url), ThreadPoolExecutor() as pool:
        with stopped(children(process.pid)):
            chat = pool.submit(told, url, CHAT, HELLO)
            wait_for_accepted(url, 1)
            assert status(url)[0] == 200
            for _ in range(num_signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)  # two at once may be one
            assert "1 request cut off" in ended(process)
            got, text = chat.result(DEADLINE)
            assert got == 503 and "shutting down" in text


@pytest.mark.parametrize("num_signals", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_stopped_rank_fails_health_and_holds_up_no_end(num_signals):
    drain = "1" if num_signals == 1 else "600"
    flags = "--tensor-parallel", "2", "--step-seconds", "1", "--drain-seconds", drain
    with serving("tiny", *flags) as (process, url), ThreadPoolExecutor() as pool:
        with stopped(children(process.pid)):
            answers = [pool.submit(told, url, TEXT, LONG) for _ in range(2)]
            deadline = time.monotonic() + DEADLINE
            while status(url) != (503, '{"status": "stuck"}'):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for _ in range(num_signals):
                process.send_signal(signal.SIGTERM)
                time.sleep(0.3)
            assert "2 requests cut off" in ended(process)
            assert all(one.result(DEADLINE)[0] == 503 for one in answers)


@pytest.mark.nightly  # test_serve_command.py has one without a line for each request
def test_a_terminal_that_has_gone_holds_up_no_end():
    with serving("tiny", "--access-log") as (process, url):
        process.stderr.close()
        assert status(url)[0] == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0
