"""Contender: an entry in its own process, and the clock that times it from outside.

A process that is not running requests is stopped (SIGSTOP), with all that it started. Threads that would go on
computing between two runs stand still and take nothing from the other contender's runs. The parent of the process is a
guard (see guard.py), which is never stopped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import psutil

from roseinfer.paths import ROOT

from . import guard
from .entry_file import EntryFile
from .guard import signal_all
from .handed_over import HandedOver
from .refused import Refused
from .worker import READ_FD, WRITE_FD
from .workload import Request

COMMAND = (sys.executable, "-c", "from course.contest.worker import main; main()")
MOST_BYTES = 1 << 20  # of an answer
LOOK_S = 0.2  # between two looks at a process that does not answer
GUARD_S = 5.0  # in which the guard has seen that the process has ended
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What an entry may take.

    run_seconds: for one run.
    load_seconds: until it is ready for its first run, and again for that run, which may compile.
    memory_bytes: for all its processes together, beyond what Python, PyTorch and the model take.
    """

    run_seconds: float = 30.0
    load_seconds: float = 180.0
    memory_bytes: int = 2 * GIB


class Contender:
    """Runs an entry in its own process. A context manager, which ends the process and all that it started.

    file: of the entry; None for the baseline.

    wait_until_ready and run raise ValueError for a file without exactly one entry, and Refused for one that fails,
    hangs, leaves, takes too much memory or wants more than its eight places.
    """

    def __init__(self, file: EntryFile | None, limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.path = file.path if file else "baseline"
        self.name = self.kind = ""
        self._unread = b""
        self._start()

    def wait_until_ready(self) -> None:
        """Wait until the entry is loaded, then stop its process. Two contenders load at the same time."""
        if self.name:
            return
        until = Until(self.limits.load_seconds, "while it was loaded")
        self._read(until)  # the model is loaded, and no line of the entry has run
        self._count_memory()
        told = {"file": asdict(self.file) if self.file else None, "memory_bytes": self.limits.memory_bytes}
        ready = self._asked(told, until)
        if "invalid" in ready:
            raise ValueError(f"file {self.path}: {ready['invalid']}")
        self.name, self.kind = str(ready.get("ready"))[:60], str(ready.get("kind"))[:60]
        self._signal(signal.SIGSTOP)

    def _start(self) -> None:
        (read, self._to), (self._from, write) = os.pipe(), os.pipe()
        about = (str(os.getpid()), str(self.limits.memory_bytes), f"{read},{write}")
        self._guard = subprocess.Popen(
            (sys.executable, guard.__file__, *about, *COMMAND),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, READ_FD: str(read), WRITE_FD: str(write)},
            pass_fds=(read, write),
            start_new_session=True,  # Ctrl-C in a terminal goes to the contest alone
            text=True,
        )
        os.close(read)
        os.close(write)
        os.set_blocking(self._to, False)
        try:
            self._pid = self._read_pid()
        except BaseException:  # Ctrl-C too: no `with` would close what was never made
            self._guard.communicate()  # when its input closes, the guard ends the process
            self._close_pipes()
            raise

    def _read_pid(self) -> int:
        assert self._guard.stdout, "it is a pipe"
        return int(self._guard.stdout.readline())

    def run(self, requests: Sequence[Request], is_first: bool = False) -> tuple[list[list[int]], float]:
        """Run the requests. Returns their new tokens, and the seconds from telling their lengths to the last token.

        A prompt is handed over when one of the eight places is free. is_first: the run may compile what it needs,
        and may take as long as loading.
        """
        lengths = [(len(one.prompt), one.max_tokens) for one in requests]
        limit = self.limits.load_seconds if is_first else self.limits.run_seconds
        places = HandedOver(requests)
        self._signal(signal.SIGCONT)
        began = perf_counter()
        until = Until(limit, "in its first run" if is_first else "in a run")
        said = self._asked({"lengths": lengths}, until)
        while (prompts := places.answer(said)) or not places.all_ended:
            said = self._asked({"prompts": prompts}, until) if prompts else self._read(until)
        seconds = perf_counter() - began
        self._read(until)  # its run is over
        if not self._is_guarded:
            raise self._has_left(until)
        self._signal(signal.SIGSTOP)
        return places.tokens_in_order(), seconds

    def what_it_changed(self) -> str | None:
        """Ask the entry's process which name of the library the entry has changed; None if it changed none."""
        self._signal(signal.SIGCONT)
        changed = self._asked({"lengths": []}, Until(self.limits.run_seconds, "after its runs")).get("changed")
        self._signal(signal.SIGSTOP)
        return changed and str(changed)[:100]

    def close(self) -> None:
        """End the entry's processes, then the guard, also one that the entry ended or stopped."""
        self._signal(signal.SIGKILL)
        self._guard.kill()
        self._guard.communicate()
        self._close_pipes()

    def _close_pipes(self) -> None:
        os.close(self._to)
        os.close(self._from)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        signal_all(self._guard.pid, self._pid, number)

    def _asked(self, message: dict[str, Any], until: Until) -> dict[str, Any]:
        """Send a line, and wait for the answer."""
        self._send(json.dumps(message).encode() + b"\n", until)
        return self._read(until)

    def _read(self, until: Until) -> dict[str, Any]:
        line = self._line(until)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):  # RecursionError: thousands of brackets
            answer = None
        if not isinstance(answer, dict):
            raise Refused(f"it writes {line[:40]!r} where its tokens are read: an entry only returns them")
        if "failed" in answer:
            raise Refused(f"it failed {until.when}: {str(answer['failed'])[:300]}")
        return answer

    def _send(self, data: bytes, until: Until) -> None:
        while data:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                self._wait([], [self._to], until)
            except BrokenPipeError:
                raise self._has_left(until) from None

    def _line(self, until: Until) -> bytes:
        while b"\n" not in self._unread:
            self._wait([self._from], [], until)
            part = os.read(self._from, 1 << 16)
            if not part:
                raise self._has_left(until)
            self._unread += part
            if len(self._unread) > MOST_BYTES:
                raise Refused(f"its answer is longer than {MOST_BYTES:,} bytes")
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _wait(self, reads: list[int], writes: list[int], until: Until) -> None:
        while not any(select.select(reads, writes, [], LOOK_S)):
            if not self._is_guarded:  # a child of the process may still hold the pipe open
                raise self._has_left(until)
            until.check()
        until.check()

    @property
    def _is_guarded(self) -> bool:
        """Whether the guard still works: it ends with the entry's process, and the entry could have stopped it."""
        return self._guard.poll() is None and not self._guard_is_stopped

    @property
    def _guard_is_stopped(self) -> bool:
        return psutil.Process(self._guard.pid).status() == psutil.STATUS_STOPPED

    def _has_left(self, until: Until) -> Refused:
        """Say why an entry that no longer answers is refused: what the guard saw, or what it did to guard or pipe."""
        assert self._guard.stdout, "it is a pipe"
        try:
            self._guard.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            if self._guard_is_stopped:
                return Refused(f"the process that guards it was stopped {until.when}")
            return Refused(f"it closed the pipe through which its tokens are read {until.when}")
        said = self._guard.stdout.read().strip()
        if not said:
            return Refused(f"the process that guards it was ended {until.when}")
        return Refused(said if said.startswith("it ") else f"its process ended {until.when}, {said}")

    def _count_memory(self) -> None:
        """Tell the guard to count memory from what the process holds now."""
        assert self._guard.stdin and self._guard.stdout, "they are pipes"
        with suppress(BrokenPipeError):  # the next look finds that it has ended
            print(file=self._guard.stdin, flush=True)
            self._guard.stdout.readline()


class Until:
    """The time by which an answer is due. when: the part of the contest, in words."""

    def __init__(self, seconds: float, when: str) -> None:
        self.seconds, self.when = seconds, when
        self.deadline = perf_counter() + seconds

    def check(self) -> None:
        if perf_counter() > self.deadline:
            raise Refused(f"it took longer than {self.seconds:g} s {self.when}, and was ended")
