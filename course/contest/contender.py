"""Contender: an entry in its own process, and the clock that times it from outside.

A process that is not running requests is stopped (SIGSTOP), with what it started in its process group. Threads that
would go on computing between two runs stand still and take nothing from the other contender's runs.
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
from typing import IO, Any

from roseinfer.paths import ROOT

from .entry_file import EntryFile
from .handed_over import HandedOver
from .refused import Refused
from .workload import Request

COMMAND = (sys.executable, "-c", "from course.contest.worker import main; main()")
MOST_BYTES = 1 << 20  # of an answer
LOOK_S = 0.2  # between two looks at a process that does not answer
LEFT_S = 5.0  # in which a process whose pipe is closed has ended
GIB = 1 << 30


@dataclass(frozen=True)
class Limits:
    """What an entry may take.

    run_seconds: for one run.
    load_seconds: until it is ready for its first run, and again for that run, which may compile.
    memory_bytes: of address space, beyond what Python, PyTorch and the model take; on Linux alone.
    """

    run_seconds: float = 30.0
    load_seconds: float = 180.0
    memory_bytes: int = 2 * GIB


class Contender:
    """Runs an entry in its own process. A context manager, which ends the process and what is in its process group.

    file: of the entry; None for the baseline.

    wait_until_ready and run raise ValueError for a file without exactly one entry, and Refused for one that fails,
    hangs, leaves, takes too much memory or wants more than its eight places.
    """

    def __init__(self, file: EntryFile | None, limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.path = file.path if file else "baseline"
        self.name = self.kind = ""
        self._unread = b""
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        # A session of its own: Ctrl-C in a terminal goes to the contest alone.
        self._process = subprocess.Popen(
            COMMAND, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=ROOT, start_new_session=True
        )

    def wait_until_ready(self) -> None:
        """Wait until the entry is loaded, then stop its process. Two contenders load at the same time."""
        if self.name:
            return
        told = {"file": asdict(self.file) if self.file else None, "memory_bytes": self.limits.memory_bytes}
        ready = self._asked(told, Until(self.limits.load_seconds, "while it was loaded"))
        if "invalid" in ready:
            raise ValueError(f"file {self.path}: {ready['invalid']}")
        self.name, self.kind = str(ready.get("ready"))[:60], str(ready.get("kind"))[:60]
        self._signal(signal.SIGSTOP)

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
        self._signal(signal.SIGSTOP)
        return places.tokens_in_order(), seconds

    def what_it_changed(self) -> str | None:
        """Ask the entry's process which name of the library the entry has changed; None if it changed none."""
        self._signal(signal.SIGCONT)
        changed = self._asked({"lengths": []}, Until(self.limits.run_seconds, "after its runs")).get("changed")
        self._signal(signal.SIGSTOP)
        return changed and str(changed)[:100]

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        with suppress(BrokenPipeError):
            self._inbox.close()
        self._outbox.close()

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _inbox(self) -> IO[bytes]:
        assert self._process.stdin, "it is a pipe"
        return self._process.stdin

    @property
    def _outbox(self) -> IO[bytes]:
        assert self._process.stdout, "it is a pipe"
        return self._process.stdout

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: none but zombies
            os.killpg(self._process.pid, number)

    def _asked(self, message: dict[str, Any], until: Until) -> dict[str, Any]:
        """Send a line, and wait for the answer."""
        try:
            self._inbox.write(json.dumps(message).encode() + b"\n")
            self._inbox.flush()
        except BrokenPipeError:
            raise self._has_left(until) from None
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

    def _line(self, until: Until) -> bytes:
        while b"\n" not in self._unread:
            self._wait(until)
            part = os.read(self._outbox.fileno(), 1 << 16)
            if not part:
                raise self._has_left(until)
            self._unread += part
            if len(self._unread) > MOST_BYTES:
                raise Refused(f"its answer is longer than {MOST_BYTES:,} bytes")
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _wait(self, until: Until) -> None:
        while not select.select([self._outbox], [], [], LOOK_S)[0]:
            if self._process.poll() is not None:  # a child of the process may still hold the pipe open
                raise self._has_left(until)
            until.check()
        until.check()

    def _has_left(self, until: Until) -> Refused:
        """Say why an entry that no longer answers is refused."""
        try:
            status = self._process.wait(LEFT_S)
        except subprocess.TimeoutExpired:
            return Refused(f"it closed the pipe through which its tokens are read {until.when}")
        how = f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        return Refused(f"its process ended {until.when}, {how}")


class Until:
    """The time by which an answer is due. when: the part of the contest, in words."""

    def __init__(self, seconds: float, when: str) -> None:
        self.seconds, self.when = seconds, when
        self.deadline = perf_counter() + seconds

    def check(self) -> None:
        if perf_counter() > self.deadline:
            raise Refused(f"it took longer than {self.seconds:g} s {self.when}, and was ended")
