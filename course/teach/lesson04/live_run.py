"""A run that a panel watches: stages that decode one after another, in a thread of their own, until stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from roseinfer.arguments import require_count
from roseinfer.bench.contenders import StageContender, require_fit
from roseinfer.bench.ladder import check_stages, random_prompts
from roseinfer.models import Model, load_model
from roseinfer.models.load import DTYPES
from roseinfer.profiling import Machine, decode_floor, measure_machine
from roseinfer.profiling.span_times import SpanTimes
from roseinfer.profiling.spans import listening
from roseinfer.stage import Stage

from ..notebook_setup import device
from .live_batch import Lane, Step, phase_seconds, step_spans

DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
REPORT_SECONDS = 0.4  # at most, between two reports, unless a step takes longer: a report is some 50 kB


@dataclass(frozen=True)
class RunSettings:
    """What to decode. model: a spec for load_model.

    Raises ValueError for a bad argument. Arguments that depend on the model are checked once the run has loaded it.
    """

    stages: tuple[type[Stage], ...]
    model: str
    batch_size: int
    prompt_len: int
    max_new_tokens: int
    dtype: str

    def __post_init__(self) -> None:
        check_stages(self.stages)
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be a spec such as 'tiny', got {self.model!r}")
        require_count("batch_size", self.batch_size, at_least=1)
        require_count("prompt_len", self.prompt_len, at_least=1)
        require_count("max_new_tokens", self.max_new_tokens, at_least=2)  # the first token comes from the prefill
        if self.dtype not in DTYPE_NAMES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPE_NAMES)}, got {self.dtype!r}")

    def __str__(self) -> str:
        return (
            f"model {self.model}, batch {self.batch_size}, prompt {self.prompt_len}, "
            f"{self.max_new_tokens} new tokens, {self.dtype}"
        )


class Stopped(Exception):
    """Ends a run between two of its steps, because it was asked to stop."""


class LiveRun:
    """Decodes in a thread; `lanes` and `status` may be read from on_report, which that thread calls between steps.

    on_report is called every REPORT_SECONDS (less often when a step takes longer), and once more when all is over. Only
    one run goes on at a time: a new run stops the current one and waits until it has ended. error: what ended the run,
    if something went wrong.
    """

    _latest: LiveRun | None = None

    def __init__(self, settings: RunSettings, on_report: Callable[[LiveRun], None]) -> None:
        self.settings = settings
        self.lanes: dict[str, Lane] = {}  # the latest batch of each stage
        self.current: Lane | None = None
        self.machine: Machine  # measured before the first lane begins
        self.status = "starting"
        self.error: Exception | None = None
        self._on_report = on_report
        self._reported_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._before, LiveRun._latest = LiveRun._latest, self
        self._thread.start()

    @property
    def shown(self) -> list[Lane]:
        """The lanes that have steps."""
        return [lane for lane in self.lanes.values() if lane.steps]

    def stop(self) -> None:
        """Ask the run to end after the step that is under way."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to timeout seconds; return whether the thread has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            if self._before is not None:
                self._before.stop()
                self._before.wait()
                self._before = None
            self._decode()
        except Stopped:
            self.status = "stopped"
        except Exception as error:
            self.error, self.status = error, "failed"
        self._on_report(self)

    def _decode(self) -> None:
        """Decode a batch with each stage in turn, until stopped."""
        settings = self.settings
        self._say(f"loading {settings.model}")
        model = load_model(settings.model, device(), DTYPE_NAMES[settings.dtype])
        require_fit(model.config, prompt_len=settings.prompt_len, max_new_tokens=settings.max_new_tokens)
        self._say("measuring this machine")
        self.machine = measure_machine(model.device, model.dtype)
        prompts, spans = random_prompts(model, settings.batch_size, settings.prompt_len), step_spans()
        for stage_class in itertools.cycle(settings.stages):
            lane = self.current = self.lanes[stage_class.name] = self._lane(stage_class, model)
            self._say("prefill")
            with listening(spans):
                contender = StageContender(stage_class, model, prompts, settings.max_new_tokens)
                contender.run(partial(self._on_step, lane, spans))

    def _lane(self, stage_class: type[Stage], model: Model) -> Lane:
        settings = self.settings

        def floor(context_len: int) -> float:
            return decode_floor(model.config, [context_len] * settings.batch_size, model.dtype, self.machine).seconds

        sizes = settings.batch_size, settings.prompt_len, settings.max_new_tokens - 1
        return Lane(stage_class.name, *sizes, floor, stage_class.why_untimed(model.device))

    def _on_step(self, lane: Lane, spans: SpanTimes, num_tokens: int, seconds: float) -> None:
        """Keep a step. num_tokens, seconds: of all steps of this batch so far."""
        step = seconds - sum(earlier.seconds for earlier in lane.steps)
        lane.steps.append(Step(step, phase_seconds(spans.take())))
        self.status = "decoding"
        if perf_counter() + step >= self._reported_at + REPORT_SECONDS:
            self._report()
        self._end_if_asked()

    def _say(self, status: str) -> None:
        self.status = status
        self._report()
        self._end_if_asked()

    def _report(self) -> None:
        self._on_report(self)
        self._reported_at = perf_counter()

    def _end_if_asked(self) -> None:
        if self._stopping.is_set():
            raise Stopped
