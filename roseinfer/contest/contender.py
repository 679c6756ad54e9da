"""Contender: an entry in a process of its own, and the clock that times it from outside.

A process that is not running requests is stopped (SIGSTOP), with all that it started: threads that go on computing
between two runs stand still, and take nothing from the other contender's runs. Its parent is a guard (see guard.py),
which is never stopped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence as List
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from roseinfer.paths import ROOT

from . import guard
from .entry_file import EntryFile
from .guard import signal_all
from .handed_over import HandedOver
from .refused import Refused
from .worker import READ_FD, WRITE_FD
from .workload import Request

COMMAND = (sys.executable, "-c", "from roseinfer.contest.worker import main; main()")
MOST_BYTES = 1 << 20  # of an answer
LOOK_S = 0.2  # between two looks at a process that does not answer
GUARD_S = 5.0  # in which the guard has seen that the process has ended
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """run_seconds: of one run. load_seconds: until an entry is ready for the first one. memory_bytes: of all its
    processes together, beyond what Python, PyTorch and the model take."""

    run_seconds: float = 30.0
    load_seconds: float = 180.0
    memory_bytes: int = 2 * GIB


class Contender:
    """file: of the entry; None for the baseline. A context manager, which ends the process and all that it started.

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
        """Wait until it is loaded; until then, two of them load beside each other. Then it stands still."""
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
        assert self._guard.stdout, "it is a pipe"
        self._pid = int(self._guard.stdout.readline())

    def run(self, requests: List[Request], is_first: bool = False) -> tuple[list[list[int]], float]:
        """The new tokens of each request, and seconds from telling their lengths until all tokens were back.

        A prompt is handed over when one of the eight places is free. is_first: the run may compile what it needs, and
        has the time for it that loading has.
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
        if self._guard.poll() is not None:
            raise self._has_left(until)
        self._signal(signal.SIGSTOP)
        return places.tokens_in_order(), seconds

    def what_it_changed(self) -> str | None:
        """What of the library is not as it was before the entry was there. It is asked in its own process."""
        self._signal(signal.SIGCONT)
        changed = self._asked({"lengths": []}, Until(self.limits.run_seconds, "after its runs")).get("changed")
        self._signal(signal.SIGSTOP)
        return changed and str(changed)[:100]

    def close(self) -> None:
        """End all of it, also where the guard has been ended."""
        self._signal(signal.SIGKILL)
        self._guard.communicate()
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
        except ValueError:
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
            if self._guard.poll() is not None:  # a child of the process may still hold the pipe open
                raise self._has_left(until)
            until.check()
        until.check()

    def _has_left(self, until: Until) -> Refused:
        """What the guard says about it. An end that it does not see is a pipe that the entry has closed."""
        assert self._guard.stdout, "it is a pipe"
        try:
            self._guard.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            return Refused(f"it closed the pipe through which its tokens are read {until.when}")
        said = self._guard.stdout.read().strip()
        if not said:
            return Refused(f"the process that guards it was ended {until.when}")
        return Refused(said if said.startswith("it ") else f"its process ended {until.when}, {said}")

    def _count_memory(self) -> None:
        """Have the guard count from what is held now."""
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
