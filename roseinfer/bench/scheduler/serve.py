"""serve: one run of the benchmark on the engine's scheduler, or on a stage that generate.stream drives.

They decide what is computed when; this module gives them their requests and records what they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from time import perf_counter
from typing import Any

from roseinfer.arguments import require_count, unknown_name
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.drive import Queue, drive
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes, Timekeeper
from roseinfer.engine.step import StepRecord
from roseinfer.generate import stream
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.profiling import Trace, capture
from roseinfer.profiling.clock import Clock
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..contenders import blocks_for, stage_for
from .run import ServedRequest, ServedStep, ServerRun
from .workload import Workload

MODES = ("naive", "offline", "online")


class EngineQueue:
    """The finished engine. Steps run in turn, as in the posts, so times add up."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        engine.warm_up()
        engine.metrics.clock = clock
        self.driven, self.add = engine, engine.add

    @property
    def has_work(self) -> bool:
        return self.driven.has_work

    def step(self) -> ServedStep:
        done = self.driven.step()
        return ServedStep.of(self.driven.metrics.history[-1], done)


class StageQueue:
    """A stage that generate.stream drives: prefill a request when there is a place, then decode all that run."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self.driven, self.clock, self.times = stage, clock, Timekeeper()
        self.seqs: list[Sequence] = []

    def add(self, seq: Sequence, arrival: float) -> SequenceTimes:
        self.seqs.append(seq)
        return self.times.begin(seq, arrival)

    @property
    def has_work(self) -> bool:
        return not all(seq.finish_reason for seq in self.seqs)

    @cached_property
    def tokens(self) -> Iterator[tuple[Sequence, int]]:
        return stream(self.driven, self.seqs)

    def step(self) -> ServedStep:
        """Call the stage once, and do what stream does before and after the call."""
        running = [seq for seq in self.seqs if seq.output_ids and not seq.finish_reason]
        began = self.clock()
        first, _ = next(self.tokens)
        ended = self.clock()
        is_decode = first in running
        done = running if is_decode else [first]
        for _ in done[1:]:
            next(self.tokens)  # the other tokens of the same call
        self.times.begin_step(done, began)
        num_tokens = len(done) if is_decode else first.num_prompt_tokens
        record = StepRecord(began, began, ended, ended, num_tokens, len(done))
        self.times.end_step(record, done)
        return ServedStep.of(record, done)


def serve(
    mode: str,
    stage_class: type[Stage],
    model: Model,
    workload: Workload,
    max_batch_size: int = 8,
    *,
    profile: bool = False,
    prefix_caching: bool = True,
    after_step: Callable[[Any], None] = lambda driven: None,
    clock: Clock = perf_counter,
) -> tuple[ServerRun, Trace | None]:
    """Serve requests that all come at once, on a fresh stage, which is made before the clock starts.

    mode: how many run at a time: naive one, online max_batch_size, offline all of them. stage_class: EngineStage is the
    engine with its own scheduler. profile: also trace three decode steps, after one that is not profiled and two to
    warm up; what the profiler does between steps is in no time. prefix_caching: of the engine. after_step: called with
    the stage, or the engine, after each decode step, in no time either.

    Raises ValueError for an unknown mode, a request that can never fit, and a profile of fewer than six steps.
    """
    if mode not in MODES:
        raise ValueError(f"mode={unknown_name(mode, MODES)}")
    require_count("max_batch_size", max_batch_size, at_least=1)
    num_requests = len(workload.prompts)
    places = {"naive": 1, "offline": num_requests, "online": min(max_batch_size, num_requests)}[mode]
    queue = queue_for(stage_class, model, workload, places, prefix_caching, clock)
    encode_seconds, seqs = [], []
    for prompt in workload.prompts:
        began = 0.0 if workload.is_encoded else clock()
        seqs.append(Sequence(workload.encode(prompt), workload.params))
        encode_seconds.append(0.0 if workload.is_encoded else clock() - began)
    arrival = clock()
    times = [queue.add(seq, arrival) for seq in seqs]
    steps: list[ServedStep] = []

    def decode_step() -> None:
        """Step on to the end of the next decode step, or of all work."""
        for step in drive(queue):
            steps.append(step)
            if not step.prompt_tokens:
                after_step(queue.driven)
                return

    trace = profile_steps(decode_step, queue) if profile else None
    while queue.has_work:
        decode_step()
    parts = zip(seqs, encode_seconds, times, strict=True)
    requests = tuple(
        ServedRequest(seq.num_prompt_tokens, tuple(seq.output_ids), seconds, own) for seq, seconds, own in parts
    )
    return ServerRun(mode, requests, tuple(steps)), trace


def queue_for(
    stage_class: type[Stage], model: Model, workload: Workload, places: int, prefix_caching: bool, clock: Clock
) -> EngineQueue | StageQueue:
    """Make a queue with the blocks that all requests need at their longest, whatever the number of places."""
    longest = [length + workload.params.most_tokens for length in workload.prompt_lens]
    if not issubclass(stage_class, EngineStage):
        return StageQueue(stage_for(stage_class, model, longest, max_num_seqs=places), clock)
    engine = Engine(
        prepared_copy(model),
        num_blocks=blocks_for(longest),
        block_size=BLOCK_SIZE,
        max_num_seqs=places,
        enforce_eager=stage_class.enforce_eager,
        enable_prefix_caching=prefix_caching,
        async_scheduling=False,
    )
    return EngineQueue(engine, clock)


def profile_steps(decode_step: Callable[[], None], queue: Queue[ServedStep]) -> Trace:
    """Profile by the posts' schedule: wait for one step, warm up for two, record three."""
    done = 0

    def step() -> None:
        nonlocal done
        if not queue.has_work:
            raise ValueError(
                "a profile takes six decode steps (wait 1, warm up 2, record 3), and no sequence is left to decode "
                f"after {done}; ask for more tokens or requests"
            )
        decode_step()
        done += 1

    return capture(step, steps=3, warmup=2)
