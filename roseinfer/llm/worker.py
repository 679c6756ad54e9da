"""Worker: a process for work that may never end, and that Python cannot break off: templates and grammars of clients.

The parent writes a request a line, and `serve` in the process writes a line with what `answer` of a module returns.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from roseinfer.parallel.process import ProcessEnded

READY = "ready\n"
MEMORY_BYTES = 2 * 2**30  # of addresses; the imports take about 0.2 GiB of them
SPARE_SECONDS = 5  # that a process which should have ended itself gets: it may be stopped
START_SECONDS = 120  # its imports take 2 s, and far longer on a busy machine with a cold disk

Answer = dict[str, str]


class Worker:
    """A process that answers requests with `answer` of a module. It is started again after a request has ended it.

    Its imports run beside the caller's work, and only an answer waits for them.

    seconds: the most that one request may take.
    """

    def __init__(self, module: str, seconds: float) -> None:
        self.module, self.seconds = module, seconds
        self._lock = threading.Lock()
        self._is_closed = False
        self._start()

    def answer(self, **request: Any) -> Answer:
        """Return the answer to one request, a dict with "error" where the request has ended the process.

        Raises TypeError, ValueError or RecursionError for what is no JSON, and ProcessEnded when the process does not
        start.
        """
        line = json.dumps(request | {"seconds": self.seconds})
        with self._lock:
            if self._process.poll() is not None:  # by no request of ours
                self._restart()
            try:
                self._wait_for_start()
                answer = self._exchange(line)
            except BaseException:  # Ctrl-C: the next request must not read this one's answer
                self._restart()
                raise
            if answer:
                return json.loads(answer)
            self._restart()
        return {"error": f"it was ended, since it took more than {self.seconds:g} s or too much memory"}

    def close(self) -> None:
        """End the process for good, also in the middle of an answer."""
        self._is_closed = True
        self._stop()

    def _exchange(self, line: str) -> str:
        """Return the process's answer, or "" if the request has ended it."""
        with self._ended_after(self.seconds + SPARE_SECONDS):
            try:
                print(line, file=self._process.stdin, flush=True)
                return self._said.readline()
            except (OSError, ValueError):  # a broken pipe, which Windows calls an invalid argument; a closed one
                return ""

    def _restart(self) -> None:
        self._stop()
        if not self._is_closed:
            self._start()

    def _start(self) -> None:
        # -I: neither the current folder nor PYTHON* variables change what is imported.
        path = [str(folder) for folder in sys.path if folder]
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from roseinfer.llm.worker import serve; "
            f"from {self.module} import answer; serve(answer)"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for this process alone
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._stop = weakref.finalize(self, _end, self._process)
        assert self._process.stdout, "it is a pipe"
        self._said, self._has_started = self._process.stdout, False

    def _wait_for_start(self) -> None:
        if self._has_started:
            return
        with self._ended_after(START_SECONDS), suppress(OSError, ValueError):  # a closed pipe
            self._has_started = self._said.readline() == READY
        if not (self._has_started or self._is_closed):
            raise ProcessEnded(f"a process did not start: try {sys.executable} -I -c 'import {self.module}'")

    @contextmanager
    def _ended_after(self, seconds: float) -> Iterator[None]:
        """End the process if reading what it says takes longer than `seconds` inside this block."""
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


# In the process


def serve(answer: Callable[..., Answer]) -> None:
    """Answer requests until stdin ends. A request names the seconds after which it ends this process."""
    _limit_memory()
    answers, sys.stdout = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    print(READY, end="", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # A thread of C code, which ends the process even within one long operation. It works on every system.
        faulthandler.dump_traceback_later(request.pop("seconds"), exit=True, file=nowhere)
        answered = answer(**request)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answered), file=answers, flush=True)


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (OSError, ValueError):  # macOS refuses a limit below what it has reserved
        return
