"""Metrics: timestamps of each sequence, and what the engine counts. planning/definitions.py derives the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isnan, nan
from time import perf_counter

from roseinfer.sequence import Sequence

from .feature import Feature
from .scheduler import Scheduler
from .step import Step, StepRecord

HISTORY = 1024  # steps that are kept


@dataclass(eq=False, slots=True)
class SequenceTimes:
    """The timestamps of one sequence, filled while it runs.

    arrival: when it came. first_scheduled: when its first step was scheduled. steps: for each new token, the step that
    made it. ended: when it finished or was aborted. What has not happened yet is NaN.
    """

    arrival: float
    first_scheduled: float = nan
    steps: list[StepRecord] = field(default_factory=list)
    ended: float = nan

    @property
    def has_ended(self) -> bool:
        return not isnan(self.ended)

    def add(self, step: StepRecord, num_tokens: int, has_ended: bool) -> None:
        """Note a step that computed a part of the sequence, how many tokens it gave, and whether it was the last."""
        if isnan(self.first_scheduled):
            self.first_scheduled = step.scheduled
        self.steps += [step] * num_tokens
        if has_ended:
            self.ended = step.finish


class EngineMetrics(Feature):
    """Counts and times of an engine since it was made. Counts cover everything, history the last HISTORY steps.

    clock: seconds; it may be replaced before the first request. num_drafted, num_accepted: tokens of drafts that steps
    verified, and those of them that became tokens of a sequence; Speculation counts them.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.clock: Callable[[], float] = perf_counter
        self.live: dict[int, SequenceTimes] = {}  # of sequences that have not ended, by seq_id
        self.num_steps = self.num_tokens = self.num_new_tokens = 0
        self.num_drafted = self.num_accepted = 0
        self._num_gifts = 0  # how often a step gave a sequence tokens
        self.history: deque[StepRecord] = deque(maxlen=HISTORY)
        self._scheduler = scheduler

    def begin(self, seq: Sequence, arrival: float | None) -> SequenceTimes:
        times = self.live[seq.seq_id] = SequenceTimes(self.clock() if arrival is None else arrival)
        return times

    def before_launch(self, step: Step) -> None:
        step.launched = self.clock()
        step.load = len(self._scheduler.running), self._scheduler.num_waiting

    def after_tokens(self, step: Step, done: list[Sequence]) -> None:
        num_tokens, num_new = sum(step.num_new), sum(step.num_given)
        if not all(step.num_given):  # tokens of sequences that had ended are surplus
            pairs = zip(step.seqs, step.num_new, strict=False)  # of a stage's step num_new is not known
            num_tokens -= sum(n for seq, n in pairs if seq.seq_id not in self.live)
        record = StepRecord(step.scheduled, step.launched, step.ended, self.clock(), num_tokens, num_new, *step.load)
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.num_new_tokens += num_new
        self._num_gifts += sum(map(bool, step.num_given))
        self.history.append(record)
        for seq, n in zip(step.seqs, step.num_given, strict=True):
            if times := self.live.get(seq.seq_id):
                times.add(record, n, bool(seq.finish_reason))
                if seq.finish_reason:
                    del self.live[seq.seq_id]

    def end(self, seq: Sequence) -> None:
        """Note that a sequence was aborted."""
        now = self.clock()
        if times := self.live.pop(seq.seq_id, None):
            times.ended = now

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
