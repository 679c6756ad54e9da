"""Race: contenders in turn on the same requests, with progress, until all runs are done or it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from roseinfer.engine.calls import Stop
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.planning.definitions import summary
from roseinfer.profiling.progress import OnProgress, Progress

from .contenders import ContenderFailed
from .interleave import phase_of, turns
from .peers import wait_until_idle
from .workload import Work

DIGITS = 6  # of the seconds in a record
ROWS_OF_WEIGHTS = 16  # a step on a CPU reads its weights in about the time of so many rows: for estimates
Sample = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of num_requests requests. began: the time by the contender's clock at second 0 of the arrivals.

    requests, outputs, finished: those of the requests that had come, in the order of their arrivals. steps, counters:
    those that the engine records; empty for another engine.
    """

    num_requests: int
    began: float
    requests: list[SequenceTimes]
    outputs: list[list[int]]
    finished: list[bool]
    steps: list[StepRecord] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_batch(cls, outputs: list[list[int]], began: float, ended: float) -> Run:
        """Make the run of a batch of which nothing is known but when all of it began and ended."""
        step = StepRecord(finish=ended)
        times = [SequenceTimes(began, steps=[step] * len(output), ended=ended) for output in outputs]
        return cls(len(outputs), began, times, outputs, [True] * len(outputs))

    @property
    def complete(self) -> bool:
        """Whether the run ended without an interrupt."""
        return len(self.finished) == self.num_requests and all(self.finished)

    @property
    def ended(self) -> float:
        """The time of the last token; `began` without any token."""
        return max((times.steps[-1].finish for times in self.requests if times.steps), default=self.began)

    @property
    def seconds(self) -> float:
        """Seconds from the first arrival to the last token; 0 without any token."""
        return self.ended - self.requests[0].arrival if self.num_tokens else 0.0

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))

    def record(self) -> Sample:
        """Return the run for JSON: its figures, and every raw time in seconds after `began`."""
        seconds, num_finished = self.seconds, sum(self.finished)
        return {
            "complete": self.complete,
            "num_requests": self.num_requests,
            "finished": num_finished,
            "tokens": self.num_tokens,
            "seconds": seconds,
            "requests_per_second": num_finished / seconds if seconds else 0.0,
            "tokens_per_second": self.num_tokens / seconds if seconds else 0.0,
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

    def _after(self, seconds: float) -> float | None:
        return None if isnan(seconds) else round(seconds - self.began, DIGITS)


@dataclass(frozen=True)
class Contender:
    """Someone who runs in a race.

    Args:
        name: as tables have it.
        called: the name, with what tells it from others with that name.
        key: that as the fields of its samples, such as its precision or its budget.
        run: run(work, stop) serves all of `work`, greedily and each request to its full length, until stop() is true.
        versions: those of libraries that describe_host does not name.
    """

    name: str
    called: str
    key: dict[str, Any]
    run: Callable[[Work, Stop], Run]
    versions: dict[str, str] = field(default_factory=dict)


class Stopped(Exception):
    """Raised in place of a run, or after a part of one, once a race has been stopped."""


class Race:
    """Runs contenders in turn, and reports each run as it begins.

    Args:
        plan: the work of every run of each contender, warm-ups too, by what it is called: for the time that is left.
        repeats: how often each runs the same work.
        on_progress: called as each run begins.
        stop: asked between two runs, and by contenders between two steps, whether that is enough.
        at_least: seconds that all of it takes however fast it runs, such as the time that requests need to come.
    """

    def __init__(
        self,
        plan: Mapping[str, Sequence[Work]],
        repeats: int,
        on_progress: OnProgress | None,
        stop: Stop = lambda: False,
        at_least: float = 0.0,
    ) -> None:
        self.repeats, self.stop = repeats, stop
        work = {name: sum(map(cost, runs)) for name, runs in plan.items()}
        self._progress = Progress(on_progress, work, sum(map(len, plan.values())), at_least=at_least)

    def run(self, phase: str, contender: Contender, work: Work, repeat: int = -1) -> Run:
        """Let a contender serve `work`, and wait until its threads are idle. Raises Stopped once the race is."""
        if self.stop():
            raise Stopped
        self._progress.begin(phase, contender.called, cost(work), repeat)
        run = contender.run(work, self.stop)
        wait_until_idle()
        return run

    def in_turn(self, where: str, contenders: Sequence[Contender], work: Work) -> Iterator[tuple[Contender, int, Run]]:
        """Yield who ran, the repeat and the run."""
        for repeat, _, contender in turns(contenders, self.repeats):
            yield contender, repeat, self.run(f"{where}, {phase_of(repeat, self.repeats)}", contender, work, repeat)


def cost(work: Work) -> int:
    """Estimate how long a run takes, relative to others, by its computed rows and the weights that each step reads."""
    rows = sum(arrival.prompt_len + arrival.output_len for arrival, _ in work)
    return rows + ROWS_OF_WEIGHTS * max(arrival.output_len for arrival, _ in work)


def check_lengths(contender: Contender, work: Work, run: Run) -> None:
    """Raise ContenderFailed unless a run has an output for each request, as long as it was asked for."""
    asked, given = [arrival.output_len for arrival, _ in work], [*map(len, run.outputs)]
    if given != asked:
        raise ContenderFailed(
            f"{contender.called} gave {len(given)} outputs of {sorted({*given})} tokens, asked were {len(asked)} of "
            f"{sorted({*asked})}"
        )
