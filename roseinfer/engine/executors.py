"""Executors: when a step is scheduled, launched and committed. In turn, or with the next step launched in between."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from roseinfer.profiling import span
from roseinfer.sequence import Sequence

from .metrics import EngineMetrics, Step
from .runner import InFlight, Runner
from .scheduler import NOTHING, Scheduler


class Load(NamedTuple):
    num_running: int
    num_waiting: int


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that was launched, and what its record will say of its beginning."""

    step: InFlight
    scheduled: float
    launched: float
    load: Load


class Executor(Protocol):
    def step(self) -> list[Sequence]:
        """Go on until a step has been committed, or launched: the sequences that have one token more, and those that
        ended with an error of their own.

        After an error of the whole step nothing is appended, and the next call makes the same step again.
        """

    def rest(self) -> None:
        """Nothing is to be done any more: drop what is in flight."""


class Sync:
    """Schedule, run, commit, and then the next step. While the device computes the host waits for it, and the other
    way round."""

    def __init__(self, scheduler: Scheduler, runner: Runner, metrics: EngineMetrics) -> None:
        self.scheduler, self.runner, self.metrics = scheduler, runner, metrics

    def step(self) -> list[Sequence]:
        flight = self.launch()
        try:
            return self.commit(flight)
        except BaseException:
            self.runner.drop(flight.step)
            raise

    def rest(self) -> None:
        """Between two calls nothing is in flight."""

    def launch(self, before: InFlight | None = None) -> Flight | None:
        """The next step, after the one `before` it. None when there is nothing to do before that is committed."""
        scheduled = self.metrics.clock()
        with span("roseinfer.engine.schedule"):
            seqs, num_new = self.scheduler.schedule(before.ahead if before else NOTHING)
            load = Load(len(self.scheduler.running), self.scheduler.num_waiting)
        if not seqs:
            return None
        launched = self.metrics.clock()
        return Flight(self.runner.launch(seqs, num_new, before), scheduled, launched, load)

    def commit(self, flight: Flight) -> list[Sequence]:
        """Wait for a step's tokens, and let its sequences have them."""
        step, now = flight.step, self.metrics.clock
        tokens = step.token_ids()
        ended = now()
        with span("roseinfer.engine.commit"):
            done = self.scheduler.commit(step.seqs, step.num_new, tokens)
            num_tokens = sum(not seq.error for seq in done)
            times = Step(flight.scheduled, flight.launched, ended, now(), sum(step.num_new), num_tokens, *flight.load)
            self.metrics.record(times, step.seqs, done)
        return done


class OneBehind(Sync):
    """The next step is launched before this one's tokens are read, so the device goes on without a pause.

    What the next step needs of them stays on the device, and the scheduler counts them as there. A sequence that stops
    with one of them is in the next step already: that surplus token is dropped. Blocks need no waiting for: the device
    works in order, and who gets a block that was freed comes later. As in SGLang's and vLLM's asynchronous scheduling.
    """

    def __init__(self, scheduler: Scheduler, runner: Runner, metrics: EngineMetrics) -> None:
        super().__init__(scheduler, runner, metrics)
        self.in_flight: deque[Flight] = deque()  # one, and while a step is launched two

    def step(self) -> list[Sequence]:
        try:
            if len(self.in_flight) < 2:
                before = self.in_flight[-1].step if self.in_flight else None
                if flight := self.launch(before):
                    self.in_flight.append(flight)
                    if before is None:
                        return []
            done = self.commit(self.in_flight[0])
        except BaseException:
            self.rest()
            raise
        self.in_flight.popleft()
        if not self.scheduler.has_work:
            self.rest()  # all of it is surplus
        return done

    def rest(self) -> None:
        """What is dropped is computed again, if its sequences are still there."""
        while self.in_flight:
            self.runner.drop(self.in_flight[-1].step)
            self.in_flight.pop()
