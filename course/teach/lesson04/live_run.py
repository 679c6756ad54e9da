"""A run that a panel watches: stages that decode one after another, in a thread of their own, until stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from roseinfer.arguments import require_count
from roseinfer.bench.contenders import blame, check_all_free, require_fit, stage_for
from roseinfer.bench.ladder import check_stages, random_prompts
from roseinfer.generate import decode_step
from roseinfer.models import Model, load_model
from roseinfer.models.load import DTYPES
from roseinfer.profiling import Machine, decode_floor, measure_machine
from roseinfer.profiling.clock import Clock, device_clock, seconds_of
from roseinfer.profiling.spans import listening
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..notebook_setup import device
from .live_batch import Lane, Step, phase_seconds, step_spans

DTYPE_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
REPORT_SECONDS = 0.2  # at most, between two reports, unless a step takes longer
THREAD_NAME = "roseinfer live run"


@dataclass(frozen=True)
class RunSettings:
    """What to decode. model: a spec for load_model. repeat: start again with the first stage after the last one.

    Raises ValueError for a bad argument. Arguments that depend on the model are checked once the run has loaded it.
    """

    stages: tuple[type[Stage], ...]
    model: str
    batch_size: int
    prompt_len: int
    max_new_tokens: int
    dtype: str
    repeat: bool = False

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


class LiveRun:
    """Decodes in a thread; `lanes` and `status` may be read from on_report, which that thread calls between steps.

    on_report is called every REPORT_SECONDS (less often when a step takes longer), and once more, with `running` False,
    when all is over. However a batch ends, its sequences are freed. Only one run goes on at a time: a new run stops the
    current one and waits until it has ended. error: what ended the run, if something went wrong.
    """

    _latest: LiveRun | None = None
    _lock = threading.Lock()

    def __init__(
        self, settings: RunSettings, on_report: Callable[[LiveRun], None], clock: Clock = perf_counter
    ) -> None:
        self.settings = settings
        self.lanes: dict[str, Lane] = {}  # the latest batch of each stage
        self.finished: dict[str, Lane] = {}  # the latest that did all its steps
        self.current: Lane | None = None
        self.machine: Machine  # measured before the first lane begins
        self.status = "starting"
        self.error: Exception | None = None
        self._over = False
        self._on_report = on_report
        self._clock = clock
        self._reported_at = float("-inf")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        with LiveRun._lock:
            self._before, LiveRun._latest = LiveRun._latest, self
            self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.ident is not None and not self._over

    def stop(self) -> None:
        """Ask the run to end after the step that is under way."""
        self._stopping.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to timeout seconds; return whether the thread has ended or was never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._end_the_one_before()
            self._decode_all()
            self.status = "stopped" if self._stopping.is_set() else "finished"
        except Exception as error:
            self.error = error
            self.status = "failed"
        finally:
            self._over = True
            self._report()

    def _end_the_one_before(self) -> None:
        if self._before is not None:
            self._before.stop()
            self._before.wait()
            self._before = None

    def _decode_all(self) -> None:
        settings = self.settings
        self._say(f"loading {settings.model}")
        model = load_model(settings.model, device(), DTYPE_NAMES[settings.dtype])
        require_fit(model.config, prompt_len=settings.prompt_len, max_new_tokens=settings.max_new_tokens)
        self._say("measuring this machine")
        self.machine = measure_machine(model.device, model.dtype)
        for stage_class in itertools.cycle(settings.stages) if settings.repeat else settings.stages:
            if self._stopping.is_set():
                return
            self._decode_batch(stage_class, model)

    def _decode_batch(self, stage_class: type[Stage], model: Model) -> None:
        settings = self.settings
        params = SamplingParams(max_tokens=settings.max_new_tokens, ignore_eos=True)
        prompts = random_prompts(model, settings.batch_size, settings.prompt_len)
        seqs = [Sequence(prompt, params) for prompt in prompts]
        with blame(stage_class.name, "its constructor"):
            stage = stage_for(stage_class, model, [seq.max_len for seq in seqs])
        self.current = self.lanes[stage.name] = lane = self._lane(stage)
        try:
            self._prefill(stage, seqs, lane)
            self._decode(stage, seqs, lane)
        finally:
            for seq in seqs:
                if stage.holds(seq):
                    stage.free(seq)
            lane.blocks_held = lane.num_blocks - stage.num_free_blocks
        check_all_free(stage, lane.num_blocks)
        if lane.finished:
            self.finished[stage.name] = lane
        self._report_if_due()

    def _lane(self, stage: Stage) -> Lane:
        settings, machine = self.settings, self.machine
        config, dtype = stage.config, stage.model.dtype  # not the model: a pinned lane would keep its weights

        def floor(context_len: int) -> float:
            return decode_floor(config, [context_len] * settings.batch_size, dtype, machine).seconds

        return Lane(
            stage.name,
            str(settings),
            settings.batch_size,
            settings.prompt_len,
            settings.max_new_tokens - 1,
            stage.tables.num_blocks,
            floor,
            stage.why_untimed(stage.model.device),
        )

    def _prefill(self, stage: Stage, seqs: list[Sequence], lane: Lane) -> None:
        self.status = "prefill"
        for seq in seqs:
            if self._stopping.is_set():
                return
            with blame(stage.name, "the prefill"):
                seq.append(sample(stage.prefill(seq).unsqueeze(0), [seq])[0])
            lane.blocks_held = lane.num_blocks - stage.num_free_blocks
            self._report_if_due()

    def _decode(self, stage: Stage, seqs: list[Sequence], lane: Lane) -> None:
        now, spans = device_clock(stage.model.device, self._clock), step_spans(self._clock)
        started = self._clock()
        self.status = "decoding"
        with listening(spans):
            while len(lane.steps) < lane.num_steps and not self._stopping.is_set():
                with blame(stage.name, f"decode step {len(lane.steps)}"):
                    seconds = seconds_of(lambda: decode_step(stage, seqs), now)
                lane.steps.append(Step(seconds, phase_seconds(spans.take())))
                lane.blocks_held = lane.num_blocks - stage.num_free_blocks
                lane.wall_seconds = self._clock() - started
                self._report_if_due(seconds)

    def _say(self, status: str) -> None:
        self.status = status
        self._report()

    def _report_if_due(self, next_step: float = 0.0) -> None:
        """Report if REPORT_SECONDS have passed since the last report, or would pass during the next step."""
        if self._clock() + next_step >= self._reported_at + REPORT_SECONDS:
            self._report()

    def _report(self) -> None:
        self._on_report(self)
        self._reported_at = self._clock()
