"""The guard ends an entry's process, and all that it started: when the contest has gone, and for too much memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from textwrap import dedent

import psutil
import pytest

from course.contest import guard

MIB = 1 << 20
LONG = 60.0  # seconds after which something has gone wrong, on a busy machine too
# A contest: it starts the guard of a process, tells of both, and then it is not heard of again.
CONTEST = """
    import os, subprocess, sys, time
    guard, source = sys.argv[1:]
    fd = os.open(os.devnull, os.O_RDONLY)
    command = [sys.executable, guard, str(os.getpid()), str(1 << 40), str(fd), sys.executable, "-c", source]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    own = subprocess.Popen(command, pass_fds=[fd], start_new_session=True, **pipes)
    print(own.pid, own.stdout.readline(), flush=True)
    time.sleep(100)
"""
SLEEPS = "import time; time.sleep(100)"
# A child that has left its process group, and whose parent has ended.
LEAVES = "import os\nif os.fork() == 0:\n    os.setsid()\n    os.fork() and os._exit(0)\n"


def ends(pids: list[int]) -> bool:
    """Whether they all end."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if not any(runs(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def on_linux(source: str) -> str:
    return source if sys.platform == "linux" else ""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("source", [SLEEPS, on_linux(LEAVES) + SLEEPS], ids=["alone", "with a child that left"])
def test_a_contest_that_is_ended_leaves_no_stopped_process(how, source):
    command = [sys.executable, "-c", dedent(CONTEST), guard.__file__, source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as contest:
        own, worker = map(int, contest.stdout.readline().split())
        while "fork" in source and len(guard.tree_of(own)) < 2:
            time.sleep(0.01)
        every = [one.pid for one in guard.tree_of(own)]
        guard.signal_all(own, worker, signal.SIGSTOP)
        contest.send_signal(how)
    assert worker in every and ends([own, *every])


def guarded(source: str, memory_bytes: int = 1 << 40) -> subprocess.Popen[str]:
    """A guard, started by this process, which counts memory from the start. The process waits until it does."""
    go, waits = os.pipe()
    wait = f"import os; os.read({go}, 1)\n"
    about = [str(os.getpid()), str(memory_bytes), str(go)]
    command = [sys.executable, guard.__file__, *about, sys.executable, "-c", wait + dedent(source)]
    own = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(go,))
    own.stdout.readline()
    print(file=own.stdin, flush=True)
    assert own.stdout.readline() == "counted\n"
    os.close(waits)
    os.close(go)
    return own


ENDS = {
    "leaves": ("raise SystemExit(7)", "exit status 7\n"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "signal SIGKILL\n"),
    "leaves a child": ("import os, time\nif os.fork() == 0: time.sleep(1000)\nos._exit(3)", "exit status 3\n"),
}


@pytest.mark.parametrize(("source", "line"), ENDS.values(), ids=list(ENDS))
def test_it_says_how_the_process_ended(source, line):
    own = guarded(source)
    said = own.stdout.read()
    own.communicate(timeout=LONG)
    assert said == line


GROWS = "kept = b'x' * (40 << 20)\nimport time; time.sleep(1000)\n"
TOO_MUCH = {
    "one process": "kept = b'x' * (120 << 20)\nimport time; time.sleep(1000)",
    "children": "import os\n[os.fork() for _ in range(2)]\n" + GROWS,
    "a child that left": on_linux(LEAVES) + "kept = b'x' * (120 << 20)\nimport time; time.sleep(1000)",
}


@pytest.mark.parametrize("source", TOO_MUCH.values(), ids=list(TOO_MUCH))
def test_memory_counts_for_all_processes_together(source):
    own = guarded(source, memory_bytes=100 * MIB)
    said = own.stdout.read()
    own.communicate(timeout=LONG)
    assert said == "it takes more memory than is allowed: 100 MiB for all its processes together\n"


def test_memory_counts_where_its_exact_size_is_secret(monkeypatch):
    """As on macOS, and for a process of another user."""

    def refused(process):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "memory_full_info", refused)
    assert guard.held(psutil.Process(), exact=True) == guard.held(psutil.Process(), exact=False) > 0


def test_a_process_of_another_user_is_passed_over(monkeypatch):
    """`sudo` in an entry: no signal reaches it, and the others get theirs."""
    signalled = []

    def kill(pid, number):
        signalled.append(pid)
        raise PermissionError

    one, other = (psutil.Process(pid) for pid in (os.getpid(), os.getppid()))
    monkeypatch.setattr(guard, "tree_of", lambda top: [one, other])
    monkeypatch.setattr(guard.os, "kill", kill)
    monkeypatch.setattr(guard.os, "killpg", lambda group, number: None)
    guard.signal_all(1, 1, signal.SIGCONT)
    assert sorted(signalled) == sorted([one.pid, other.pid])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what processes share")
def test_memory_that_processes_share_counts_once():
    """Four processes that hold the same 60 MiB."""
    source = "kept = b'x' * (60 << 20)\nimport os, time\n[os.fork() for _ in range(2)]\ntime.sleep(1.5)\nos._exit(0)"
    own = guarded(source, memory_bytes=150 * MIB)
    assert own.stdout.read() == "exit status 0\n"
    own.communicate(timeout=LONG)
