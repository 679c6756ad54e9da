"""serve: requests come when they are due, while the engine steps. Ctrl-C ends a run between two steps."""

from __future__ import annotations

import time
from collections.abc import Callable

from roseinfer.drive import WallClock, drive_by_clock
from roseinfer.engine.calls import Stop
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.sequence import SamplingParams, Sequence

from ..race import Run
from ..workload import Work

Sleep = Callable[[float], None]


def serve(engine: Engine, work: Work, stop: Stop = lambda: False, sleep: Sleep = time.sleep) -> Run:
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
    return Run(
        num_requests=len(work),
        began=clock.began,
        requests=[times for _, times in came],
        outputs=[seq.output_ids for seq, _ in came],
        finished=[seq.finish_reason == "length" for seq, _ in came],
        steps=steps,
        counters=engine.metrics.counters(),
    )
