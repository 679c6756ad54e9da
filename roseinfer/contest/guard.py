"""Guard: the parent of an entry's process. It ends that process and all that it started when the contest has gone, also
without a word (SIGKILL, a notebook's restart), and when they hold too much memory together.

It is executed as a file, so that it is ready before anything of the library is imported. The contest writes a line when
the model is loaded, and memory counts from there. The guard's only words are the process id of the entry's process and,
at the end, what happened.
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
    """contest: its process id. memory_bytes: beyond what is held when the model is loaded. fds: for the process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1)  # orphans stay in this process's tree
    nowhere = subprocess.DEVNULL
    # A session of its own, so that its process group is that of all processes which do not leave it.
    worker = subprocess.Popen(
        command, pass_fds=fds, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
    for fd in fds:
        os.close(fd)
    print(worker.pid, flush=True)
    said = watch(worker, contest, memory_bytes)
    signal_all(os.getpid(), worker.pid, signal.SIGKILL)
    with suppress(BrokenPipeError):  # the contest has gone
        print(said, flush=True)


def watch(worker: subprocess.Popen[bytes], contest: int, memory_bytes: int) -> str:
    """Until there is a reason to end all of it, which it returns."""
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
    """Bytes of all descendants; what several of them share counts once, as long as the sum is above exact_from."""
    every = tree_of(top)
    total = sum(held(one, exact=False) for one in every)
    return sum(held(one, exact=True) for one in every) if total > exact_from else total


def held(process: psutil.Process, exact: bool) -> int:
    try:
        if not exact:
            return int(process.memory_info().rss)
        info = process.memory_full_info()
        return int(getattr(info, "pss", info.uss))  # pss: on Linux
    except psutil.Error:  # it has ended
        return 0


def tree_of(top: int) -> list[psutil.Process]:
    try:
        return psutil.Process(top).children(recursive=True)
    except psutil.Error:
        return []


def signal_all(guard: int, group: int, number: int) -> None:
    """Signal the process group, and the guard's descendants that have left it. One that was started meanwhile, too."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: none but zombies
        os.killpg(group, number)
    seen: set[int] = set()
    while new := {one.pid for one in tree_of(guard)} - seen:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        seen |= new


if __name__ == "__main__":
    own, most, fds = int(sys.argv[1]), int(sys.argv[2]), [int(fd) for fd in sys.argv[3].split(",")]
    main(own, most, fds, sys.argv[4:])
