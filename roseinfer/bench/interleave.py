"""Interleaved measuring: contenders run in turn, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

from roseinfer.profiling.clock import MOST_REPEATS
from roseinfer.profiling.progress import OnProgress, Progress, RunProgress

from .neighbours import with_waiting

OnStep = Callable[[int, float], None]  # decode tokens of this run so far, and the seconds they took
T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


def turns(names: Sequence[Name], repeats: int, warmup: int = 0) -> Iterator[tuple[int, int, Name]]:
    """Yield (repeat, position in its round, name): A B C, B C A, C A B, ... Repeats below 0 are the warm-up.

    ROSEINFER_REPEATS limits the repeats, for runs whose times are not looked at.
    """
    for repeat in range(-warmup, min(repeats, int(os.environ.get(MOST_REPEATS, repeats)))):
        for position in range(len(names)):
            yield repeat, position, names[(repeat + position) % len(names)]


def interleaved(
    contenders: Mapping[Name, Callable[[], T]],
    repeats: int,
    warmup: int = 0,
    on_run: Callable[[Name, int], object] = lambda name, repeat: None,
) -> dict[Name, list[T]]:
    """Call the contenders in turn and return what each call returned, by name and in order, without the warm-up.

    on_run: called before each call with the name and the repeat, which is below 0 for the warm-up.
    """
    samples: dict[Name, list[T]] = {name: [] for name in contenders}
    for repeat, _, name in turns(list(contenders), repeats, warmup):
        on_run(name, repeat)
        sample = contenders[name]()
        if repeat >= 0:
            samples[name].append(sample)
    return samples


def race(runs: Mapping[str, Callable[[], T]], repeats: int, on_progress: OnProgress | None) -> dict[str, list[T]]:
    """Call each once for warm-up and then `repeats` times, in turn, with progress; runs take about as long."""
    progress = Progress(on_progress, dict.fromkeys(runs, 1 + repeats), len(runs) * (1 + repeats))

    def on_run(name: str, repeat: int) -> None:
        progress.begin(phase_of(repeat, repeats), name, repeat=repeat)

    return interleaved(runs, repeats, warmup=1, on_run=on_run)


@dataclass(frozen=True)
class Run:
    """One run of one contender.

    outputs: the new token ids of each sequence, the first one made by the prefill. num_processes: see Stage.
    """

    prefill_seconds: float
    step_seconds: tuple[float, ...]
    outputs: list[list[int]]
    num_processes: int = 1

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def decode_tokens(self) -> int:
        return self.tokens - len(self.outputs)


Contender = tuple[str, Callable[[OnStep], Run]]


def measure(
    contenders: Sequence[Contender], *, repeats: int, warmup: int = 1, on_progress: OnProgress | None = None
) -> list[dict[str, Any]]:
    """Run every contender `warmup` times unrecorded, then `repeats` times: A B C, B C A, C A B, ...

    contenders: (name, run); run(on_step) does the work once and returns a Run, calling on_step between its steps.
    Returns one sample per run: name, repeat, position in its round, tokens, decode_tokens, seconds, prefill_seconds,
    decode_seconds, step_seconds, tokens_per_second, waited_seconds. tokens_per_second is a run's speed by its median
    step: one step that another process held up would else stand for the whole run. waited_seconds: see neighbours.
    """
    names = [name for name, _ in contenders]
    report = on_progress or (lambda progress: None)
    progress = Progress(None, dict.fromkeys(names, warmup + repeats), len(names) * (warmup + repeats))
    runs = dict(contenders)
    samples: list[dict[str, Any]] = []
    for repeat, position, name in turns(names, repeats, warmup):
        here = progress.begin(phase_of(repeat, repeats), name, repeat=max(repeat, -1))
        run, waited = with_waiting(partial(runs[name], partial(_report_step, report, here, [])))
        waited = waited if run.num_processes == 1 else None  # for each other, which is no sign of another program
        sample = _sample(name, repeat, position, run) | {"waited_seconds": waited}
        if repeat >= 0:
            samples.append(sample)
        tokens = sample["decode_tokens"]
        seconds = tokens / sample["tokens_per_second"]
        report(replace(here, tokens=tokens, seconds=seconds, finished=True, runs_done=here.runs_done + 1))
    return samples


def phase_of(repeat: int, repeats: int) -> str:
    return "warm-up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}"


def _report_step(report: OnProgress, here: RunProgress, steps: list[float], tokens: int, seconds: float) -> None:
    """Report a step that has just ended. steps: the seconds of this run's earlier steps; this one is appended."""
    steps.append(seconds - sum(steps))
    report(replace(here, tokens=tokens, seconds=len(steps) * median(steps)))


def _sample(name: str, repeat: int, position: int, run: Run) -> dict[str, Any]:
    decode_seconds = sum(run.step_seconds)
    return {
        "name": name,
        "repeat": repeat,
        "position": position,
        "tokens": run.tokens,
        "decode_tokens": run.decode_tokens,
        "seconds": run.prefill_seconds + decode_seconds,
        "prefill_seconds": run.prefill_seconds,
        "decode_seconds": decode_seconds,
        "step_seconds": list(run.step_seconds),
        "tokens_per_second": run.decode_tokens / (len(run.step_seconds) * median(run.step_seconds)),
    }
