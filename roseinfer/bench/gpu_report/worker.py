"""Worker: parts of a report in a process of their own, so that one that breaks the GPU, or hangs, ends only itself.

After an illegal access a process can use its GPU for nothing more. A fresh process can.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from .context import Context, PartFailed, one_line

Row = dict[str, Any]
Parts = dict[str, Callable[[Context], Iterable[Row]]]


class Worker:
    """Runs parts for `context`, one after another; a process is started when there is none. A context manager."""

    def __init__(self, context: Context, parts: Parts) -> None:
        self._context, self._parts = context, parts
        self._process: multiprocessing.process.BaseProcess | None = None

    def rows_of(self, part: str) -> Iterator[Row]:
        """What the part yields, notes and failures to the context. Raises PartFailed when it raised, when the process
        died, and when it was silent for longer than plan.silence_seconds; the next part then has a fresh process."""
        if self._process is None or not self._process.is_alive():
            self.close()
            self._start()
        self._connection.send(part)
        while True:
            kind, value = self._received()
            if kind == "row":
                yield value
            elif kind == "done":
                return
            elif kind == "error":
                self.close()
                raise PartFailed(value)
            else:
                {"fail": self._context.fail, "note": self._context.note, "say": self._context.say}[kind](value)

    def _received(self) -> tuple[str, Any]:
        seconds = self._context.plan.silence_seconds
        try:
            if self._connection.poll(seconds):
                return self._connection.recv()
            reason = f"said nothing for {seconds:.0f} s"
        except (EOFError, OSError):
            self._process.join()
            reason = f"its process ended with exit status {self._process.exitcode}"
        self.close()
        raise PartFailed(reason)

    def _start(self) -> None:
        processes = multiprocessing.get_context("spawn")  # a fork cannot use CUDA
        self._connection, theirs = processes.Pipe()
        context = replace(self._context, say=None, failures=[], notes=[])
        self._process = processes.Process(target=serve, args=(theirs, context, self._parts), daemon=True)
        self._process.start()
        theirs.close()  # or its end would not be noticed here

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


class _Telling(Context):
    """A context whose notes and failures go to the process that started this one."""

    connection: Connection

    def fail(self, text: str) -> None:
        self.connection.send(("fail", text))

    def note(self, text: str) -> None:
        self.connection.send(("note", text))


def serve(connection: Connection, context: Context, parts: Parts) -> None:
    """In the process: run the parts that are asked for, until one raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, and then ends it
    context = _Telling(**{**vars(context), "say": lambda text: connection.send(("say", text))})
    context.connection = connection
    while True:
        try:
            part = connection.recv()
        except EOFError:  # nobody asks any more
            return
        try:
            for row in parts[part](context):
                connection.send(("row", row))
            if context.device.type == "cuda":
                torch.cuda.synchronize(context.device)  # an error of a kernel shows now at the latest
        except Exception as error:
            connection.send(("error", one_line(error)))
            return
        connection.send(("done", None))
