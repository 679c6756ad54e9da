"""What a live run keeps of one batch of one stage: its steps, its spans, its blocks, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

from roseinfer.profiling.clock import Clock
from roseinfer.profiling.phases import DECODE
from roseinfer.profiling.spans import SpanTimes, TimedSpan

RECENT = 16  # steps: enough to read the numbers, few enough to see them change as the context grows
PHASES = {
    "roseinfer.decode_step_sessions.build_batched_past": "build",
    "roseinfer.decode_step_sessions.build_block_tables": "build",
    "roseinfer.decode_step_sessions.h2d_block_tables": "build",
    "roseinfer.model.forward": "forward",
    "roseinfer.kv.append_token": "append",
}
UNLABELLED = "unlabelled"


def step_spans(clock: Clock) -> SpanTimes:
    """A listener to the spans right inside a decode step."""
    return SpanTimes(lambda name, around: around == DECODE, clock)


def phase_seconds(spans: Iterable[TimedSpan]) -> dict[str, float]:
    """Seconds of each phase; a span of another name is a phase of its own."""
    seconds: dict[str, float] = {}
    for span in spans:
        phase = PHASES.get(span.name, span.name)
        seconds[phase] = seconds.get(phase, 0.0) + span.seconds
    return seconds


@dataclass(frozen=True)
class Step:
    """seconds: the whole step, sampling included. phases: seconds of those that have a span."""

    seconds: float
    phases: dict[str, float]


@dataclass(eq=False)
class Lane:
    """One batch of one stage. floor: the least seconds of a decode step in which each sequence has so many tokens.

    Every number is a mean over the last RECENT of the first `upto` steps (None: of all so far), so that two lanes can
    be compared at the same step. Blocks are those of the fullest layer. caveat: why the times say nothing, if so.
    """

    name: str
    settings: str
    batch_size: int
    prompt_len: int
    num_steps: int
    num_blocks: int
    floor: Callable[[int], float]
    caveat: str | None = None
    blocks_held: int = 0
    steps: list[Step] = field(default_factory=list)
    wall_seconds: float = 0.0  # from the first step's start, with what went on between steps

    def recent(self, upto: int | None = None) -> list[Step]:
        return self.steps[:upto][-RECENT:]

    def step_seconds(self, upto: int | None = None) -> float:
        return fmean(step.seconds for step in self.recent(upto))

    def phase_seconds(self, upto: int | None = None) -> dict[str, float]:
        """Seconds a step of each phase, and of what no phase covers."""
        steps = self.recent(upto)
        names = list(dict.fromkeys(name for step in steps for name in step.phases))
        phases = {name: fmean(step.phases.get(name, 0.0) for step in steps) for name in names}
        return phases | {UNLABELLED: self.step_seconds(upto) - sum(phases.values())}

    def tokens_per_second(self, upto: int | None = None) -> float:
        return self.batch_size / self.step_seconds(upto)

    def floor_share(self, upto: int | None = None) -> float:
        """The floor at the context of the last of these steps, over the measured step."""
        last = len(self.steps[:upto])
        return self.floor(self.prompt_len + last) / self.step_seconds(upto)
