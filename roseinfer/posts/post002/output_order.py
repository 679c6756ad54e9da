"""Decode steps that a queue of requests takes in a given order, when every output length is known. No clock.

The rule: at most `slots` requests decode at a time; a step makes one token for each; a slot that falls free takes the
next waiting request before the next step. All wait at the start, all steps cost the same, and prefills cost nothing.
This is list scheduling on `slots` equal machines, and longest first is the LPT rule (Graham, "Bounds on
Multiprocessing Timing Anomalies", 1969).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass

from roseinfer.arguments import require_count

# The key that a stable sort of the waiting requests uses.
ORDERS: dict[str, Callable[[int], int]] = {
    "first come": lambda length: 0,
    "longest first": lambda length: -length,
    "shortest first": lambda length: length,
}


@dataclass(frozen=True)
class ListSchedule:
    """finishes[i]: the steps after which request i has all of its lengths[i] tokens. As all wait at 0, its latency."""

    lengths: List[int]
    finishes: List[int]

    @property
    def steps(self) -> int:
        return max(self.finishes)

    @property
    def mean_batch(self) -> float:
        """Requests that a step decodes, in the mean."""
        return sum(self.lengths) / self.steps

    @property
    def mean_latency(self) -> float:
        """Steps."""
        return sum(self.finishes) / len(self.finishes)

    @property
    def shortest_tenth_latency(self) -> float | None:
        """Mean latency, in steps, of the tenth of the requests (rounded up) with the shortest outputs. None where all
        are equally long."""
        if len(set(self.lengths)) == 1:
            return None
        by_length = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i])
        shortest = by_length[: -(-len(by_length) // 10)]
        return sum(self.finishes[i] for i in shortest) / len(shortest)


def decode_all(lengths: List[int], slots: int, order: str) -> ListSchedule:
    """The schedule of outputs of these lengths, named in order of arrival. order: a key of ORDERS.

    Raises ValueError for no requests, a length or `slots` below 1, or an unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown, allowed: {', '.join(ORDERS)}")
    _check(lengths, slots)
    finishes = [0] * len(lengths)
    free_at = [0] * slots  # a heap: the step from which each slot is free
    for i in sorted(range(len(lengths)), key=lambda i: ORDERS[order](lengths[i])):
        finishes[i] = free_at[0] + lengths[i]
        heapq.heapreplace(free_at, finishes[i])
    return ListSchedule(tuple(lengths), tuple(finishes))


def least_steps(lengths: List[int], slots: int) -> int:
    """No order takes fewer: the longest output alone needs as many, and no step makes more than `slots` tokens."""
    _check(lengths, slots)
    return max(max(lengths), -(-sum(lengths) // slots))


def _check(lengths: List[int], slots: int) -> None:
    if not lengths:
        raise ValueError("lengths must name at least one request, got none")
    for length in lengths:
        require_count("lengths", length, at_least=1)
    require_count("slots", slots, at_least=1)
