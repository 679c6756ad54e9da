"""Metrics: when what happened to each sequence, and what the engine counts. What follows from the times is defined in
definitions.py."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from roseinfer.sequence import Sequence

from .scheduler import Scheduler

HISTORY = 1024  # steps that are kept for who asks


class Step(NamedTuple):
    """One step of an engine, and the timestamps that its tokens have in common, in seconds by the engine's clock.

    scheduled: the scheduler begins to put the step together. inference_begin: it is handed over to be run.
    inference_end: its tokens are on the host. finish: its sequences have them.
    num_tokens: that it computed. num_new_tokens: that it chose. num_running, num_waiting: sequences, as it was put
    together. Of another engine's step nothing but finish may be known; the rest is None then.
    """

    scheduled: float | None
    inference_begin: float | None
    inference_end: float | None
    finish: float
    num_tokens: int | None = None
    num_new_tokens: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None


@dataclass(eq=False, slots=True)
class SequenceTimes:
    """The timestamps of one sequence, filled while it runs.

    arrival: it came. first_scheduled: its first step was scheduled. steps: for each new token, the step that made it.
    ended: it finished or was aborted.
    """

    arrival: float
    first_scheduled: float | None = None
    steps: list[Step] = field(default_factory=list)
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """A request's timestamps so far, named as in vLLM, in seconds by the engine's clock. None: not yet.

    Of several samples, the first one that was scheduled, the first token and the last one. finished_time: all of them
    have ended. time_in_queue: first_scheduled_time - arrival_time.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None
    time_in_queue: float | None

    @classmethod
    def of(cls, samples: List[SequenceTimes]) -> RequestMetrics:
        arrival = min(times.arrival for times in samples)
        scheduled = min((t.first_scheduled for t in samples if t.first_scheduled is not None), default=None)
        return cls(
            arrival_time=arrival,
            first_scheduled_time=scheduled,
            first_token_time=min((times.steps[0].finish for times in samples if times.steps), default=None),
            last_token_time=max((times.steps[-1].finish for times in samples if times.steps), default=None),
            finished_time=None if any(t.ended is None for t in samples) else max(t.ended for t in samples),
            time_in_queue=None if scheduled is None else scheduled - arrival,
        )


class EngineMetrics:
    """What an engine has done since it was made. Counts are of everything, history is of the last HISTORY steps.

    clock: seconds; an engine's own may be replaced before its first request.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self.num_steps = self.num_tokens = self.num_new_tokens = 0
        self.history: deque[Step] = deque(maxlen=HISTORY)
        self._scheduler = scheduler
        self._live: dict[int, SequenceTimes] = {}
        self._unscheduled: dict[int, SequenceTimes] = {}  # of these, those that no step has computed yet

    def begin(self, seq: Sequence, arrival: float | None) -> SequenceTimes:
        times = SequenceTimes(self.clock() if arrival is None else arrival)
        self._live[seq.seq_id] = self._unscheduled[seq.seq_id] = times
        scheduler = self._scheduler
        if len(self._live) > len(scheduler.running) + scheduler.num_waiting:  # Ctrl-C struck between commit and record
            here = {one.seq_id for one in (*scheduler.running, *scheduler.waiting)}
            for kept in (self._live, self._unscheduled):
                for seq_id in kept.keys() - here:
                    del kept[seq_id]
        return times

    def record(self, step: Step, seqs: list[Sequence], done: list[Sequence]) -> None:
        """A step of `seqs`, of which `done` have one token more or ended with an error."""
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.num_new_tokens += step.num_new_tokens
        self.history.append(step)
        if self._unscheduled:
            for seq in seqs:
                if times := self._unscheduled.pop(seq.seq_id, None):
                    times.first_scheduled = step.scheduled
        live = self._live
        for seq in done:
            if not seq.error:
                live[seq.seq_id].steps.append(step)
            if seq.finish_reason:
                live.pop(seq.seq_id).ended = step.finish

    def end(self, seq: Sequence) -> None:
        """It was aborted, perhaps before all of `begin` was done: Ctrl-C strikes anywhere."""
        self._unscheduled.pop(seq.seq_id, None)
        if times := self._live.pop(seq.seq_id, None):
            times.ended = self.clock()

    def counters(self) -> dict[str, int | float | None]:
        """prefix_cache_hit_rate: of the tokens of all sequences that joined, the share that was found; None without a
        prefix cache."""
        cache = self._scheduler.blocks.prefix_cache
        return {
            "steps": self.num_steps,
            "tokens": self.num_tokens,
            "new_tokens": self.num_new_tokens,
            "preemptions": self._scheduler.num_preemptions,
            "prefix_cache_hit_rate": cache.hit_rate if cache else None,
            "running": len(self._scheduler.running),
            "waiting": self._scheduler.num_waiting,
        }
