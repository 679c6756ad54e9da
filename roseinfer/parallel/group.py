"""Group: the ranks that compute together, and what they do together: sums, and sending weights."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from roseinfer.profiling import span

PATIENCE = timedelta(minutes=2)  # with a rank that is there and does not answer; one that is gone is noticed at once


class PeerLost(RuntimeError):
    """Raised when another rank is gone, or has not answered."""


class Group:
    """One rank's end of a group: gloo on CPUs, and NCCL beside it where the ranks compute on GPUs.

    store: a file by which all ranks find each other. The group is separate from torch.distributed's global one, which
    stays as it is, so that several models may be split in one process. The constructor waits until all ranks are there.
    """

    def __init__(self, store: Path, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        meeting = dist.FileStore(str(store), size)
        # Any: torch's stubs do not have their methods.
        self._gloo: Any = dist.ProcessGroupGloo(dist.PrefixStore("gloo", meeting), rank, size, PATIENCE)
        self._nccl: Any = None
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            self._nccl = dist.ProcessGroupNCCL(dist.PrefixStore("nccl", meeting), rank, size, options)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place: each has the same sum. Raises PeerLost."""
        with span("roseinfer.parallel.all_reduce"):
            try:
                (self._nccl or self._gloo).allreduce([x]).wait()
            except RuntimeError as error:
                raise PeerLost(f"all-reduce on rank {self.rank}: {error}") from error
        return x

    def send(self, x: Tensor, rank: int) -> None:
        """Send a tensor on the CPU to that rank. Raises PeerLost."""
        self._passed(self._gloo.send([as_bytes(x)], rank, 0), "send to", rank)

    def receive(self, x: Tensor, rank: int) -> None:
        """Fill a tensor on the CPU with what that rank sends. Raises PeerLost."""
        self._passed(self._gloo.recv([as_bytes(x)], rank, 0), "receive from", rank)

    def _passed(self, work: dist.Work, what: str, rank: int) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise PeerLost(f"{what} rank {rank}: {error}") from error

    def abort(self) -> None:
        """Let a sum that waits for a lost rank raise an error. Without GPUs it does so by itself."""
        if self._nccl:
            self._nccl.abort()


def as_bytes(x: Tensor) -> Tensor:
    return x.view(-1).view(torch.uint8)
