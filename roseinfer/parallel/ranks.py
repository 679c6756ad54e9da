"""Ranks: rank 0's view of the others. It starts their processes, sends what they compute, and ends them."""

from __future__ import annotations

import signal
import subprocess
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread

import torch

from roseinfer.models import Model

from .group import Group, PeerLost
from .process import ProcessEnded, start_process
from .rank import finished_shard, main
from .split import check_whole, shard_config, shard_weights

SECONDS_TO_START = 120  # its imports take 3 s, and far longer on a busy machine with a cold disk
SECONDS_TO_END = 10


class RankFailed(ProcessEnded):
    """Raised when a rank has ended, and all of them with it."""


@dataclass(frozen=True)
class Other:
    rank: int
    process: subprocess.Popen
    connection: Connection

    def wait_until_ready(self) -> None:
        """Wait for its next message: its imports are done, or it has met the others. Raises RankFailed."""
        if not self.connection.poll(SECONDS_TO_START):
            raise RankFailed(f"rank {self.rank} (process {self.process.pid}) did not start in {SECONDS_TO_START} s")
        try:
            failure = self.connection.recv()
        except EOFError:
            raise RankFailed(f"{self.why_ended()} as it started") from None
        if failure is not None:
            raise RankFailed(f"rank {self.rank} (process {self.process.pid}) failed as it started: {failure}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def why_ended(self) -> str:
        """Return its report, or how its process ended. Call it once its connection has something to read."""
        name = f"rank {self.rank} (process {self.process.pid})"
        try:
            return f"{name} failed: {self.connection.recv()}"
        except (EOFError, OSError):
            pass
        try:
            code = self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return f"{name} closed its connection"
        return (
            f"{name} was ended by {signal.Signals(-code).name}" if code < 0 else f"{name} ended with exit code {code}"
        )


class Others:
    """The other ranks' processes. A thread waits for the first one that ends, and ends the rest.

    failure: why they have ended, None while they run.
    """

    def __init__(self, others: list[Other], group: Group) -> None:
        self.others, self.group = others, group
        self.failure: str | None = None
        self._lock = Lock()
        self._wakes, self._wake = Pipe(duplex=False)
        self.thread = Thread(target=self._watch, name="roseinfer ranks", daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        found = wait([*(other.connection for other in self.others), self._wakes])
        for other in self.others:
            if other.connection in found:
                self.end(other.why_ended())

    def end(self, why: str) -> None:
        """End all other ranks, and keep `why`. Only the first call does anything."""
        with self._lock:
            if self.failure is not None:
                return
            self.failure = why
            self._wake.close()
            for other in self.others:
                other.kill()
            self.group.abort()


class Ranks:
    """Processes 1 to size - 1 of a model that is split over `size`; this process is rank 0.

    device: "cpu", where the ranks share the threads that torch has here, or "cuda", where rank i has GPU i. Each rank
    is a fresh Python process, in which nothing of the caller's main module runs. They end with `close`, with this
    object, and with this process, however it ends. Raises RankFailed when one does not start.
    """

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, torch.device(device, 0) if device == "cuda" else torch.device(device)
        self._threads_before = torch.get_num_threads()
        self._num_threads = max(1, self._threads_before // size)
        with TemporaryDirectory(prefix="roseinfer-ranks-") as folder:
            store = Path(folder, "store")
            started: list[Other] = []
            try:
                for rank in range(1, size):
                    started.append(self._start(rank, store))
                for other in started:
                    other.wait_until_ready()
                self.group = Group(store, 0, size, self.device)
                for other in started:
                    other.wait_until_ready()  # only then may the store go: a rank may still read in it
            except BaseException:  # Ctrl-C, too
                for other in started:
                    other.kill()
                raise
        self._others = Others(started, self.group)
        self._finalizer = weakref.finalize(self, self._others.end, "the LLM was closed")
        if self.device.type == "cpu":
            torch.set_num_threads(self._num_threads)

    def _start(self, rank: int, store: Path) -> Other:
        process, connection = start_process(
            main,
            self._num_threads,
            rank=rank,
            size=self.size,
            store=str(store),
            device=f"cuda:{rank}" if self.device.type == "cuda" else "cpu",
        )
        return Other(rank, process, connection)

    def load(self, model: Model, prepared: bool) -> Model:
        """Give each rank its part of a whole model on the CPU, and return rank 0's.

        prepared: the matrices get the layout for this machine. Raises ValueError for a model that cannot be split.
        """
        check_whole(model)
        config = shard_config(model.config, self.size)
        self.tell("load", config, model.dtype, prepared)
        with self._explained():
            for rank in range(1, self.size):
                for _, weight in shard_weights(model, rank, self.size):
                    self.group.send(weight, rank)
        weights = {name: weight.to(self.device) for name, weight in shard_weights(model, 0, self.size)}
        return finished_shard(config, weights, prepared, self.group)

    def tell(self, method: str, *args: object) -> None:
        """Let every other rank call this method of Rank. Raises RankFailed where one is gone."""
        if self._others.failure is not None:
            raise self._failed()
        for other in self._others.others:
            try:
                other.connection.send((method, args))
            except OSError:
                raise self._failed() from None

    @contextmanager
    def together(self, method: str, *args: object) -> Iterator[None]:
        """Let the other ranks call this method while the caller does the same. Raises RankFailed.

        If anything raises inside, all ranks end: the others would wait in a sum for rank 0.
        """
        self.tell(method, *args)
        with self._explained():
            try:
                yield
            except PeerLost:
                raise
            except BaseException as error:
                self._others.end(f"rank 0 failed in the middle of a step: {type(error).__name__}: {error}")
                raise

    def close(self) -> None:
        """End the other ranks. Calling it twice is fine."""
        self._finalizer()
        if self.device.type == "cpu":
            torch.set_num_threads(self._threads_before)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PeerLost as error:
            raise self._failed(error) from None

    def _failed(self, error: PeerLost | None = None) -> RankFailed:
        self._others.thread.join(SECONDS_TO_END)  # it knows which rank has ended, and how
        self._others.end(f"a rank does not answer: {error}")
        return RankFailed(f"{self._others.failure}. All {self.size} ranks have ended: load the model again")
