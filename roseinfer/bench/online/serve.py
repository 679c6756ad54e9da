"""serve: requests come when they are due, while the engine steps. Ctrl-C ends a run between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from roseinfer.drive import WallClock, drive_by_clock
from roseinfer.engine.calls import Stop
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.planning.definitions import summary
from roseinfer.sequence import SamplingParams, Sequence

from .workload import Work

DIGITS = 6  # of the seconds in a record

Sleep = Callable[[float], None]


@dataclass(frozen=True)
class OnlineRun:
    """One run of num_requests requests. began: the time by the engine's clock at second 0 of the arrivals.

    requests, outputs, finished: those of the requests that had come, in the order of their arrivals. steps, counters:
    those that the engine records; empty for another engine.
    """

    num_requests: int
    began: float
    requests: list[SequenceTimes]
    outputs: list[list[int]]
    finished: list[bool]
    steps: list[StepRecord]
    counters: dict[str, Any]

    @property
    def complete(self) -> bool:
        """Whether the run ended without an interrupt."""
        return len(self.finished) == self.num_requests and all(self.finished)

    @property
    def seconds(self) -> float:
        """Seconds from the first arrival to the last token; 0 without any token."""
        last = [times.steps[-1].finish for times in self.requests if times.steps]
        return max(last) - self.requests[0].arrival if last else 0.0

    def record(self) -> dict[str, Any]:
        """Return the run for JSON: its figures, and every raw time in seconds after `began`."""
        seconds, num_finished, num_tokens = self.seconds, sum(self.finished), sum(map(len, self.outputs))
        return {
            "complete": self.complete,
            "num_requests": self.num_requests,
            "finished": num_finished,
            "tokens": num_tokens,
            "seconds": seconds,
            "requests_per_second": num_finished / seconds if seconds else 0.0,
            "tokens_per_second": num_tokens / seconds if seconds else 0.0,
            "metrics": summary(self.requests),
            "counters": self.counters,
            "requests": [
                {
                    "arrival": self._after(times.arrival),
                    "first_scheduled": self._after(times.first_scheduled),
                    "finish": [self._after(step.finish) for step in times.steps],
                }
                for times in self.requests
            ],
            "steps": [[*map(self._after, step[:4]), *step[4:]] for step in self.steps],
        }

    def _after(self, seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds - self.began, DIGITS)


def serve(engine: Engine, work: Work, stop: Stop = lambda: False, sleep: Sleep = time.sleep) -> OnlineRun:
    """Run all of `work` by the engine's clock: greedily, each request to its full output length.

    A request that is due during a step is added after it, with its due time as arrival. stop is called between two
    steps: once it returns True, the running requests are aborted. However the run ends, none of its sequences stays in
    the engine. Raises ValueError for a request that can never fit, and for logits that are not finite.
    """
    params = (SamplingParams(max_tokens=arrival.output_len, ignore_eos=True) for arrival, _ in work)
    seqs = [Sequence(prompt, own) for (_, prompt), own in zip(work, params, strict=True)]
    came: list[tuple[Sequence, SequenceTimes]] = []
    steps: list[StepRecord] = []
    before = engine.metrics.num_steps
    clock = WallClock(engine.metrics.clock, sleep)

    def add(seq: Sequence, when: float) -> None:
        came.append((seq, engine.add(seq, clock.began + when)))

    coming = zip((arrival.seconds for arrival, _ in work), seqs, strict=True)
    try:
        for done in drive_by_clock(engine, coming, clock, add, stop):
            for seq in done:
                if seq.error:
                    raise ValueError(seq.error)
            if engine.metrics.num_steps > len(steps) + before:  # one that is only launched has no record yet
                steps.append(engine.metrics.history[-1])
    finally:
        for seq in seqs:
            if seq in engine.scheduler:
                engine.abort(seq)
    return OnlineRun(
        num_requests=len(work),
        began=clock.began,
        requests=[times for _, times in came],
        outputs=[seq.output_ids for seq, _ in came],
        finished=[seq.finish_reason == "length" for seq, _ in came],
        steps=steps,
        counters=engine.metrics.counters(),
    )
