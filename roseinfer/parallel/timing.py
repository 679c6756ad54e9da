"""How long an all-reduce takes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

import torch

from roseinfer.arguments import require_count, require_counts

from .ranks import Ranks

WARM_UP = 5


def all_reduce_seconds(num_bytes: Sequence[int], size: int = 2, device: str = "cpu", times: int = 51) -> list[float]:
    """Return the median seconds of an all-reduce of so many bytes of float32, for each of num_bytes.

    It is measured among `size` processes that are started for this: over gloo on a CPU, NCCL on GPUs. Raises ValueError
    for a wrong value.
    """
    require_count("size", size, at_least=2)
    require_count("times", times, at_least=1)
    require_counts("num_bytes", num_bytes, at_least=4)
    ranks = Ranks(size, device)
    try:
        return [median(_seconds(ranks, number, times)) for number in num_bytes]
    finally:
        ranks.close()


def _seconds(ranks: Ranks, num_bytes: int, times: int) -> list[float]:
    numbers = torch.zeros(num_bytes // 4, device=ranks.device)
    seconds = []
    with ranks.together("sum_numbers", num_bytes, WARM_UP + times):
        for _ in range(WARM_UP + times):
            before = perf_counter()
            ranks.group.all_reduce(numbers)
            if numbers.is_cuda:
                torch.cuda.synchronize(numbers.device)
            seconds.append(perf_counter() - before)
    return seconds[WARM_UP:]
