"""Contender: an entry in a process of its own, and the clock that times it from outside.

A process that is not running requests is stopped (SIGSTOP), with all that it started: threads that go on computing
between two runs stand still, and take nothing from the other contender's runs.
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

from .entry_file import EntryFile
from .worker import READ_FD, WRITE_FD
from .workload import Request

COMMAND = (sys.executable, "-c", "from roseinfer.contest.worker import main; main()")
MOST_BYTES = 1 << 20  # of an answer
LOOK_S = 0.2  # between two looks at a process that does not answer
GIB = 1 << 30


class Refused(Exception):
    """An entry that has no score, and why, in one line."""


@dataclass(frozen=True)
class Limits:
    """run_seconds: of one run. load_seconds: until an entry is ready for the first one. memory_bytes: beyond what
    Python, PyTorch and the model take."""

    run_seconds: float = 30.0
    load_seconds: float = 180.0
    memory_bytes: int = 2 * GIB


class Contender:
    """file: of the entry; None for the baseline. A context manager, which ends the process and its children.

    wait_until_ready and run raise ValueError for a file without exactly one entry, and Refused for one that fails,
    hangs, leaves or takes too much memory.
    """

    def __init__(self, file: EntryFile | None, limits: Limits) -> None:
        self.file, self.limits = file, limits
        self.path = file.path if file else "baseline"
        self.name = self.kind = ""
        self._start()

    def wait_until_ready(self) -> None:
        """Wait until it is loaded; until then, two of them load beside each other. Then it stands still."""
        if self.name:
            return
        told = {"file": asdict(self.file) if self.file else None, "memory_bytes": self.limits.memory_bytes}
        ready = self._asked(told, self.limits.load_seconds, "while it was loaded")
        if "invalid" in ready:
            raise ValueError(f"file {self.path}: {ready['invalid']}")
        self.name, self.kind = str(ready.get("ready"))[:60], str(ready.get("kind"))[:60]
        self._signal(signal.SIGSTOP)

    def _start(self) -> None:
        (read, self._to), (self._from, write) = os.pipe(), os.pipe()
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, READ_FD: str(read), WRITE_FD: str(write)},
            pass_fds=(read, write),
            start_new_session=True,  # a process group of its own, so that signals reach its children
        )
        os.close(read)
        os.close(write)

    def run(self, requests: List[Request], is_first: bool = False) -> tuple[list[list[int]], float]:
        """The new tokens of each request, and seconds from handing them over until all tokens were back. is_first: the
        run may compile what it needs, and has the time for it that loading has."""
        message = {"prompts": [one.prompt for one in requests], "max_tokens": [one.max_tokens for one in requests]}
        self._signal(signal.SIGCONT)
        began = perf_counter()
        limit = self.limits.load_seconds if is_first else self.limits.run_seconds
        answer = self._asked(message, limit, "in its first run" if is_first else "in a run")
        seconds = perf_counter() - began
        self._signal(signal.SIGSTOP)
        return checked_shape(answer.get("tokens"), requests), seconds

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(self._process.pid, number)

    def _asked(self, message: dict[str, Any], seconds: float, when: str) -> dict[str, Any]:
        """Send a line, and wait for the answer."""
        deadline = perf_counter() + seconds
        self._send(json.dumps(message).encode() + b"\n", deadline, seconds, when)
        line = self._line(deadline, seconds, when)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Refused(f"it writes {line[:40]!r} where its tokens are read: an entry only returns them")
        if "failed" in answer:
            raise Refused(f"it failed {when}: {str(answer['failed'])[:300]}")
        return answer

    def _send(self, data: bytes, deadline: float, seconds: float, when: str) -> None:
        os.set_blocking(self._to, False)
        while data:
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                self._wait([], [self._to], deadline, seconds, when)
            except BrokenPipeError:
                raise self._has_left(when) from None

    def _line(self, deadline: float, seconds: float, when: str) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            self._wait([self._from], [], deadline, seconds, when)
            part = os.read(self._from, 1 << 16)
            if not part:
                raise self._has_left(when)
            data += part
            if len(data) > MOST_BYTES:
                raise Refused(f"its answer is longer than {MOST_BYTES:,} bytes")
        return data

    def _wait(self, reads: list[int], writes: list[int], deadline: float, seconds: float, when: str) -> None:
        while not any(select.select(reads, writes, [], LOOK_S)):
            if self._process.poll() is not None:  # a child of it may still hold the pipe open
                raise self._has_left(when)
            if perf_counter() > deadline:
                raise Refused(f"it took longer than {seconds:g} s {when}, and was ended")

    def _has_left(self, when: str) -> Refused:
        status = self._process.wait()
        how = f"exit status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        return Refused(f"its process ended {when}, {how}")


def checked_shape(tokens: object, requests: List[Request]) -> list[list[int]]:
    """Raises Refused unless it has a list of token ids for each request, as many as were asked for."""
    if not isinstance(tokens, list) or len(tokens) != len(requests):
        raise Refused(f"it does not give tokens for each of the {len(requests)} requests")
    for number, (own, request) in enumerate(zip(tokens, requests, strict=True)):
        if not isinstance(own, list) or any(type(token) is not int for token in own):
            raise Refused(f"request {number}: its tokens are not a list of ids")
        if len(own) != request.max_tokens:
            raise Refused(f"request {number}: it gives {len(own)} tokens, {request.max_tokens} were asked for")
    return tokens
