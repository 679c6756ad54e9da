"""The lanes of a trace: which spans, ops and kernels stand side by side in a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from roseinfer.profiling.traces.chrome import Slice
from roseinfer.profiling.traces.trace import DEVICE_SPAN, DEVICE_WORK, HOST_SPAN

from .gaps import Gap


class Lane(NamedTuple):
    label: str
    slices: list[Slice] | list[Gap]
    named: bool  # spans, which have their names written in them

    def text(self, short: Mapping[str, str]) -> str:
        """Exact facts only: the label, and which spans, in order. short: what short_names gives."""
        spans = ", ".join(short[name] for name in dict.fromkeys(e.name for e in self.slices)) if self.named else "bars"
        return f"{self.label:12}  {spans}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Shorten names to the fewest last parts that tell them apart: roseinfer.kv.append_token -> append_token."""
    names = list(dict.fromkeys(names))
    short: dict[str, str] = {}
    left, parts = names, 1
    while left:
        ends = Counter(last_parts(name, parts) for name in names)
        short |= {n: end for n in left if ends[end := last_parts(n, parts)] == 1 or end == n}
        left, parts = [name for name in left if name not in short], parts + 1
    return short


def last_parts(name: str, parts: int) -> str:
    return ".".join(name.split(".")[-parts:])


def nesting(slices: Iterable[Slice]) -> list[tuple[Slice, int]]:
    """Return each slice with its depth among those given on its thread, in time order, enclosing ones first."""
    open_slices: dict[tuple[int | None, int | None], list[Slice]] = {}
    nested = []
    for event in slices:
        stack = open_slices.setdefault((event.pid, event.tid), [])
        while stack and stack[-1].end <= event.ts:
            stack.pop()
        nested.append((event, len(stack)))
        stack.append(event)
    return nested


def host_lanes(window: Sequence[Slice], prefix: str) -> list[Lane]:
    """Make the lanes of each thread with spans: one for each depth of spans, and one for the outermost aten ops."""
    spans = [e for e in window if e.cat == HOST_SPAN and e.name.startswith(prefix)]
    threads = list(dict.fromkeys((e.pid, e.tid) for e in spans))
    lanes = []
    for number, thread in enumerate(threads, start=1):
        host = "host" if len(threads) == 1 else f"host {number}"
        nested = nesting(e for e in spans if (e.pid, e.tid) == thread)
        for depth in range(1 + max(depth for _, depth in nested)):
            label = "spans" if depth else "steps"
            lanes.append(Lane(f"{host}: {label}", [e for e, d in nested if d == depth], named=True))
        ops = nesting(e for e in window if e.cat == "cpu_op" and (e.pid, e.tid) == thread)
        lanes.append(Lane(f"{host}: ops", [e for e, depth in ops if depth == 0], named=False))
    return lanes


def device_lanes(window: Sequence[Slice], prefix: str) -> list[Lane]:
    """Make the lanes of each stream with work: its spans, then its kernels and copies."""
    work = [e for e in window if e.cat in DEVICE_WORK]
    streams = sorted({(e.pid, e.tid) for e in work}, key=str)
    lanes = []
    for stream in streams:
        device = "device" if len(streams) == 1 else f"device {stream[0]}, stream {stream[1]}"
        on_stream = [e for e in window if (e.pid, e.tid) == stream]
        spans = [e for e in on_stream if e.cat == DEVICE_SPAN and e.name.startswith(prefix)]
        if spans:
            lanes.append(Lane(f"{device}: spans", spans, named=True))
        lanes.append(Lane(f"{device}: kernels", [e for e in on_stream if e.cat in DEVICE_WORK], named=False))
    return lanes
