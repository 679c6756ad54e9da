"""Latencies: histograms of what requests waited for, and the last values of each; filled by the engine's thread."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence

from roseinfer.llm.request import Request, Sample

# Upper bounds in seconds, as vLLM has them.
TTFT_BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
ITL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
REQUEST_BOUNDS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
RECENT = 512  # values that the live page has percentiles of


class Histogram:
    """Counts of values up to each of `bounds`, and beyond the last. Any thread may read it."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.recent.append(value)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return pairs (upper bound, number of values up to it), the form of Prometheus' buckets."""
        total, buckets = 0, []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], list(self.counts), strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class Latencies:
    """Histograms of what requests waited for. ttft: from arrival to the first token. itl: gaps between tokens.

    queue: from arrival to the first step. e2e: from arrival to the end, of requests that were not aborted. ended_by:
    the number of requests by finish_reason.
    """

    def __init__(self) -> None:
        self.ttft, self.itl = Histogram(TTFT_BOUNDS), Histogram(ITL_BOUNDS)
        self.queue, self.e2e = Histogram(REQUEST_BOUNDS), Histogram(REQUEST_BOUNDS)
        self.ended_by: Counter[str] = Counter()
        self.num_prompt_tokens = self.num_new_tokens = 0
        self._seen: dict[Sample, int] = {}  # tokens of each that are counted

    def observe(self, request: Request) -> None:
        """Count what a step gave to a request."""
        for sample in request.samples:
            if sample.times is None:
                continue
            steps, seen = sample.times.steps, self._seen.get(sample, 0)
            if not seen and steps:
                self.ttft.add(steps[0].finish - sample.times.arrival)
                self.queue.add(sample.times.first_scheduled - sample.times.arrival)
            for before, after in zip(steps[max(seen - 1, 0) :], steps[max(seen, 1) :], strict=False):
                self.itl.add(after.finish - before.finish)
            self.num_new_tokens += len(steps) - seen
            self._seen[sample] = len(steps)
        if request.finished:
            self.ended(request)

    def ended(self, request: Request) -> None:
        """Count a request that has ended, whatever its reason."""
        for sample in request.samples:
            self._seen.pop(sample, None)
        times = [sample.times for sample in request.samples if sample.times]
        reason = next((s.finish_reason for s in request.samples if s.finish_reason in ("error", "abort")), None)
        self.ended_by[reason or request.samples[0].finish_reason or "abort"] += 1
        self.num_prompt_tokens += request.samples[0].seq.num_prompt_tokens
        if reason is None and times:
            self.e2e.add(max(one.ended for one in times) - min(one.arrival for one in times))
