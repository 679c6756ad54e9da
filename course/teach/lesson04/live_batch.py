"""What a live run keeps of one batch of one stage: its steps, their phases, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from roseinfer.profiling.span_times import SpanTimes, TimedSpan
from roseinfer.profiling.traces.phases import DECODE

WINDOW = 8  # steps whose median is a point of the line from step to step
PHASES = {
    "roseinfer.decode_step_sessions.build_batched_past": "build",
    "roseinfer.decode_step_sessions.build_block_tables": "build",
    "roseinfer.decode_step_sessions.h2d_block_tables": "build",
    "roseinfer.model.forward": "forward",
    "roseinfer.kv.append_token": "append",
}
UNLABELLED = "unlabelled"


def step_spans() -> SpanTimes:
    """Make a listener to the spans directly inside a decode step."""
    return SpanTimes(lambda name, around: around == DECODE)


def phase_seconds(spans: Iterable[TimedSpan]) -> dict[str, float]:
    """Sum up the seconds of each phase. A span whose name is in no phase is a phase of its own."""
    seconds: dict[str, float] = {}
    for span in spans:
        phase = PHASES.get(span.name, span.name)
        seconds[phase] = seconds.get(phase, 0.0) + span.seconds
    return seconds


@dataclass(frozen=True)
class Step:
    """One decode step. seconds: the whole step, sampling included. phases: seconds of each phase that has a span."""

    seconds: float
    phases: dict[str, float]


@dataclass(eq=False)
class Lane:
    """One batch of one stage. floor: maps a context length to the least seconds that its decode step can take.

    Every number is that of the median step so far, so that one slow step changes none of them. caveat: why the times
    mean nothing; None if they do.
    """

    name: str
    batch_size: int
    prompt_len: int
    num_steps: int
    floor: Callable[[int], float]
    caveat: str | None = None
    steps: list[Step] = field(default_factory=list)

    def step_seconds(self) -> float:
        return median(step.seconds for step in self.steps)

    def phase_seconds(self) -> dict[str, float]:
        """Divide the median step among its phases and the unlabelled rest, in the proportions of all steps together."""
        names = list(dict.fromkeys(name for step in self.steps for name in step.phases))
        scale = self.step_seconds() / sum(step.seconds for step in self.steps)
        phases = {name: scale * sum(step.phases.get(name, 0.0) for step in self.steps) for name in names}
        return phases | {UNLABELLED: self.step_seconds() - sum(phases.values())}

    def tokens_per_second(self) -> float:
        return self.batch_size / self.step_seconds()

    def speed_at(self, step: int) -> float:
        """Return tokens a second after `step` steps, from the median of the last WINDOW of them."""
        return self.batch_size / median(s.seconds for s in self.steps[max(step - WINDOW, 0) : step])

    def floor_share(self) -> float:
        """Divide the floor at the context of the middle step by the median step."""
        return self.floor(self.prompt_len + (len(self.steps) + 1) // 2) / self.step_seconds()
