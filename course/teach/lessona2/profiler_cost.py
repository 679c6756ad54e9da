"""say_profiler_cost: a step with the profiler beside the same step without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.neighbours import busy_sentence, with_waiting
from roseinfer.generate import decode_step
from roseinfer.models import Model
from roseinfer.profiling import capture
from roseinfer.profiling.clock import seconds_of
from roseinfer.stage import Stage

from ..measure.ready_batch import ready_batch
from ..views.said import Said, say
from .events import OP

ROUNDS, STEPS, WARMUP = 6, 4, 1  # of each kind, in turn
UNSEEN = "No cost is to be seen in these times: run the cell again."


def say_profiler_cost(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> Said:
    """Say how long decode steps take with the profiler and without it, measured in turn on batches of equal lengths."""

    def new_step() -> Callable[[], object]:
        return partial(decode_step, *ready_batch(stage_class, model, prompt_lens))

    num_ops = sum(event.cat == OP for event in capture(new_step(), steps=1, warmup=WARMUP).slices)
    calls = {"with": lambda: _profiled(new_step()), "without": lambda: _plain(new_step())}
    started = perf_counter()
    times, waited = with_waiting(lambda: interleaved(calls, ROUNDS))
    warning = busy_sentence([{"waited_seconds": waited, "seconds": perf_counter() - started}])
    with_it, without = (1e3 * median(second for own in times[name] for second in own) for name in calls)
    sentences = [*cost_sentences(num_ops, with_it, without), *filter(None, [warning])]
    return say("a decode step with and without the profiler", *sentences)


def cost_sentences(num_ops: int, with_it: float, without: float) -> list[str]:
    """Say how long a step takes with the profiler and without it, both in ms."""
    ratio = round(with_it / without, 2)
    times = (
        f"A step of {num_ops:,} ops takes {with_it:.2f} ms under the profiler, and {without:.2f} ms without it: "
        f"{ratio:.2f} times as long with it."
    )
    return [times] if ratio > 1 else [times, UNSEEN]


def _profiled(step: Callable[[], object]) -> list[float]:
    """Return the seconds of each recorded step, by the clock that times the others."""
    seconds: list[float] = []
    capture(lambda: seconds.append(seconds_of(step)), steps=STEPS, warmup=WARMUP)
    return seconds[-STEPS:]


def _plain(step: Callable[[], object]) -> list[float]:
    return [seconds_of(step) for _ in range(1 + WARMUP + STEPS)][-STEPS:]
