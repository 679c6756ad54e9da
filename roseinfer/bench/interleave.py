"""Interleaved measuring: contenders run in turn, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from roseinfer.arguments import require_count

OnStep = Callable[[int, float], None]  # decode tokens of this run so far, and the seconds they took
Clock = Callable[[], float]


@dataclass(frozen=True)
class Run:
    """One run of one contender. outputs: the new token ids of each sequence, the first one made by the prefill."""

    prefill_seconds: float
    step_seconds: tuple[float, ...]
    outputs: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.outputs))

    @property
    def decode_tokens(self) -> int:
        return self.tokens - len(self.outputs)


Contender = tuple[str, Callable[[OnStep], Run]]


@dataclass(frozen=True)
class RunProgress:
    """Where a measurement stands. repeat: -1 while nothing is timed. tokens and seconds: decoding of this run."""

    phase: str
    name: str
    repeat: int = -1
    tokens: int = 0
    seconds: float = 0.0
    finished: bool = False
    runs_done: int = 0
    runs_total: int = 0


OnProgress = Callable[[RunProgress], None]


class Stopwatch:
    """Seconds between start and stop, with the device's queue empty at both."""

    def __init__(self, device: torch.device, clock: Clock = perf_counter) -> None:
        self._device = device
        self._clock = clock
        self._started = 0.0

    def start(self) -> None:
        self._synchronize()
        self._started = self._clock()

    def stop(self) -> float:
        self._synchronize()
        return self._clock() - self._started

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def measure(
    contenders: Sequence[Contender], *, repeats: int, warmup: int = 1, on_progress: OnProgress | None = None
) -> list[dict[str, Any]]:
    """Run every contender `warmup` times unrecorded, then `repeats` times: A B C, B C A, C A B, ...

    contenders: (name, run); run(on_step) does the work once and returns a Run, calling on_step between its steps.
    Returns one sample a run: name, repeat, position in its round, tokens, decode_tokens, seconds, prefill_seconds,
    decode_seconds, step_seconds. Raises ValueError for no contenders, a name twice, repeats < 1 or warmup < 0.
    """
    names = [name for name, _ in contenders]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"contenders must be at least one, each name once, got {names}")
    require_count("repeats", repeats, at_least=1)
    require_count("warmup", warmup, at_least=0)
    report = on_progress or (lambda progress: None)
    runs_total = len(contenders) * (warmup + repeats)
    samples: list[dict[str, Any]] = []
    runs_done = 0
    for repeat in range(-warmup, repeats):
        phase = "warm-up" if repeat < 0 else f"repeat {repeat + 1} of {repeats}"
        first = repeat % len(contenders)
        for position, (name, run) in enumerate([*contenders[first:], *contenders[:first]]):
            here = RunProgress(phase, name, max(repeat, -1), runs_done=runs_done, runs_total=runs_total)
            result = run(partial(_report_step, report, here))
            runs_done += 1
            sample = _sample(name, repeat, position, result)
            if repeat >= 0:
                samples.append(sample)
            tokens, seconds = sample["decode_tokens"], sample["decode_seconds"]
            report(replace(here, tokens=tokens, seconds=seconds, finished=True, runs_done=runs_done))
    return samples


def _report_step(report: OnProgress, here: RunProgress, tokens: int, seconds: float) -> None:
    report(replace(here, tokens=tokens, seconds=seconds))


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
    }
