"""Metrics: timestamps of each sequence, and what the engine counts. planning/definitions.py derives the rest."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from roseinfer.sequence import Sequence

from .feature import Feature
from .scheduler import Scheduler
from .step import Step, StepRecord

HISTORY = 1024  # steps that are kept


@dataclass(eq=False, slots=True)
class SequenceTimes:
    """The timestamps of one sequence, filled while it runs.

    arrival: when it came. first_scheduled: when its first step was scheduled. steps: for each new token, the step that
    made it. ended: when it finished or was aborted. first_scheduled and ended are None until then, and typed Any: code
    that reads the times of a finished sequence does not check.
    """

    arrival: float
    first_scheduled: float | Any = None
    steps: list[StepRecord] = field(default_factory=list)
    ended: float | Any = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """A request's timestamps so far, named as in vLLM, in seconds by the engine's clock. None: not yet.

    With several samples these are the first time that one was scheduled, the first token of any and the last token of
    any. finished_time: when all of them have ended. time_in_queue: first_scheduled_time - arrival_time.
    """

    arrival_time: float
    first_scheduled_time: float | None
    first_token_time: float | None
    last_token_time: float | None
    finished_time: float | None
    time_in_queue: float | None

    @classmethod
    def of(cls, samples: abc.Sequence[SequenceTimes]) -> RequestMetrics:
        arrival = min(times.arrival for times in samples)
        ended = [t.ended for t in samples if t.ended is not None]
        scheduled = min((t.first_scheduled for t in samples if t.first_scheduled is not None), default=None)
        return cls(
            arrival_time=arrival,
            first_scheduled_time=scheduled,
            first_token_time=min((times.steps[0].finish for times in samples if times.steps), default=None),
            last_token_time=max((times.steps[-1].finish for times in samples if times.steps), default=None),
            finished_time=max(ended) if len(ended) == len(samples) else None,
            time_in_queue=None if scheduled is None else scheduled - arrival,
        )


class Timekeeper:
    """Writes the timestamps of sequences, for any scheduler or engine that runs them."""

    def __init__(self) -> None:
        self._live: dict[int, SequenceTimes] = {}
        self._unscheduled: dict[int, SequenceTimes] = {}  # of these, those that no step has computed yet

    def begin(self, seq: Sequence, arrival: float) -> SequenceTimes:
        self._live[seq.seq_id] = self._unscheduled[seq.seq_id] = times = SequenceTimes(arrival)
        return times

    def __len__(self) -> int:
        """Return the number of sequences that have not ended."""
        return len(self._live)

    def keep(self, seq_ids: set[int]) -> None:
        """Forget all other sequences."""
        for kept in (self._live, self._unscheduled):
            for seq_id in kept.keys() - seq_ids:
                del kept[seq_id]

    def begin_step(self, seqs: list[Sequence], scheduled: float) -> None:
        """Note that a step of these sequences was scheduled."""
        if self._unscheduled:
            for seq in seqs:
                if times := self._unscheduled.pop(seq.seq_id, None):
                    times.first_scheduled = scheduled

    def end_step(self, step: StepRecord, seqs: list[Sequence], num_given: list[int] | None = None) -> None:
        """Note how many tokens a step gave each of these sequences, and which of them it ended.

        num_given: None: one for each that has no error.
        """
        for seq, n in zip(seqs, num_given or [not seq.error for seq in seqs], strict=True):
            if times := self._live.get(seq.seq_id):
                times.steps += [step] * n
                if seq.finish_reason:
                    self._live.pop(seq.seq_id).ended = step.finish

    def end(self, seq: Sequence, now: float) -> None:
        """Note that a sequence was aborted, perhaps before `begin` was done: Ctrl-C strikes anywhere."""
        self._unscheduled.pop(seq.seq_id, None)
        if times := self._live.pop(seq.seq_id, None):
            times.ended = now


class EngineMetrics(Feature):
    """Counts and times of an engine since it was made. Counts cover everything, history the last HISTORY steps.

    clock: seconds; it may be replaced before the first request. num_drafted, num_accepted: tokens of drafts that steps
    verified, and those of them that became tokens of a sequence; Speculation counts them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.clock: Callable[[], float] = perf_counter
        self.times = Timekeeper()
        self.num_steps = self.num_tokens = self.num_new_tokens = 0
        self.num_drafted = self.num_accepted = 0
        self._num_gifts = 0  # how often a step gave a sequence tokens
        self.history: deque[StepRecord] = deque(maxlen=HISTORY)
        self._scheduler = scheduler

    def begin(self, seq: Sequence, arrival: float | None) -> SequenceTimes:
        times = self.times.begin(seq, self.clock() if arrival is None else arrival)
        scheduler = self._scheduler
        if len(self.times) > len(scheduler.running) + scheduler.num_waiting:  # Ctrl-C struck between commit and record
            self.times.keep({one.seq_id for one in (*scheduler.running, *scheduler.waiting)})
        return times

    def before_launch(self, step: Step) -> None:
        step.launched = self.clock()
        step.load = len(self._scheduler.running), self._scheduler.num_waiting

    def after_tokens(self, step: Step, done: list[Sequence]) -> None:
        num_tokens, num_new = sum(step.num_new), sum(step.num_given)
        record = StepRecord(step.scheduled, step.launched, step.ended, self.clock(), num_tokens, num_new, *step.load)
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.num_new_tokens += num_new
        self._num_gifts += sum(map(bool, step.num_given))
        self.history.append(record)
        self.times.begin_step(step.seqs, step.scheduled)
        self.times.end_step(record, step.seqs, step.num_given)

    def end(self, seq: Sequence) -> None:
        self.times.end(seq, self.clock())

    def counters(self) -> dict[str, int | float | None]:
        """Return the counts by name. These need an explanation:

        prefix_cache_hit_rate: of the tokens of all sequences that joined, the share that was found; None without a
        prefix cache. drafted, accepted: tokens of drafts that steps verified, and those of them that became tokens of a
        sequence. tokens_per_step: new tokens of a sequence in a step that gave it any, 1 without drafts; None before
        the first one.
        """
        cache = self._scheduler.blocks.prefix_cache
        return {
            "steps": self.num_steps,
            "tokens": self.num_tokens,
            "new_tokens": self.num_new_tokens,
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "tokens_per_step": self.num_new_tokens / self._num_gifts if self._num_gifts else None,
            "preemptions": self._scheduler.num_preemptions,
            "prefix_cache_hit_rate": cache.hit_rate if cache else None,
            "running": len(self._scheduler.running),
            "waiting": self._scheduler.num_waiting,
        }
