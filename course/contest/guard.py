"""Guard: the parent of an entry's process, which ends that process and all that it started.

It does so as soon as the contest is gone (by SIGKILL or a notebook's restart, too), or when the processes together
hold too much memory. It is executed as a file, so that it is ready before anything of the library is imported. When the
model is loaded, the contest writes a line, and the guard counts memory from there. The guard prints three lines: the
process id of the entry's process, `counted`, and at the end the reason why it ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

import psutil

LOOK_S = 0.25  # between two looks
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
MIB = 1 << 20


def main(contest: int, memory_bytes: int, fds: list[int], command: list[str]) -> None:
    """Start the entry's process, and guard it until it ends or must end.

    contest: process id of the contest.
    memory_bytes: what all processes may hold together, beyond what they hold when the model is loaded.
    fds: file descriptors that the entry's process inherits.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1)  # orphans stay in this process's tree
    nowhere = subprocess.DEVNULL
    # A session of its own, so that its process group is that of all processes which do not leave it.
    worker = subprocess.Popen(
        command, pass_fds=fds, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    for fd in fds:
        os.close(fd)
    with suppress(BrokenPipeError):  # the contest has gone
        try:
            print(worker.pid, flush=True)
            said = watch(worker, contest, memory_bytes)
        finally:
            signal_all(os.getpid(), worker.pid, signal.SIGKILL)
        print(said, flush=True)


def watch(worker: subprocess.Popen[bytes], contest: int, memory_bytes: int) -> str:
    """Wait until the entry's processes have ended or must end, and return the reason."""
    allowed = None
    while os.getppid() == contest:
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            if not sys.stdin.readline():
                return "the contest has ended"
            allowed = memory_of(os.getpid()) + memory_bytes
            print("counted", flush=True)
        if (status := worker.poll()) is not None:
            return f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        if allowed and memory_of(os.getpid(), exact_from=allowed) > allowed:
            return f"it takes more memory than is allowed: {memory_bytes // MIB:,} MiB for all its processes together"
    return "the contest has gone"


def memory_of(top: int, exact_from: int = 0) -> int:
    """Count the bytes of all descendants. If the sum is above exact_from, count again: shared memory once."""
    every = tree_of(top)
    total = sum(held(one, exact=False) for one in every)
    return sum(held(one, exact=True) for one in every) if total > exact_from else total


def held(process: psutil.Process, exact: bool) -> int:
    """Count the bytes of one process. exact: only its part of shared memory, where this user may read that."""
    try:
        if exact:
            with suppress(psutil.AccessDenied):  # macOS, and a process that gave up PR_SET_DUMPABLE
                info = process.memory_full_info()
                return int(getattr(info, "pss", info.uss))  # pss: on Linux
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def tree_of(top: int) -> list[psutil.Process]:
    try:
        return psutil.Process(top).children(recursive=True)
    except psutil.Error:
        return []


def signal_all(guard: int, group: int, number: int) -> None:
    """Signal the process group, and the guard's descendants that have left it, including any that start meanwhile."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: none but zombies
        os.killpg(group, number)
    seen: set[int] = set()
    while new := {one.pid for one in tree_of(guard)} - seen:
        for pid in new:
            with suppress(ProcessLookupError, PermissionError):  # of another user: `sudo`
                os.kill(pid, number)
        seen |= new


if __name__ == "__main__":
    own, most, fds = int(sys.argv[1]), int(sys.argv[2]), [int(fd) for fd in sys.argv[3].split(",")]
    main(own, most, fds, sys.argv[4:])
