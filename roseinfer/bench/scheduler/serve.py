"""serve: one run of the benchmark on the engine's scheduler, or on a stage that generate.stream drives.

They decide what is computed when; this module gives them their requests and records what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from roseinfer.arguments import require_count, unknown_name
from roseinfer.blocks import BLOCK_SIZE
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

from .run import ServedRequest, ServedStep, ServerRun
from .workload import Workload

MODES = ("naive", "offline", "online")


class Server(Protocol):
    """An engine or a stage, as large as its requests need."""

    driven: Any  # an Engine or a Stage

    @property
    def has_work(self) -> bool: ...

    def add_all(self, seqs: list[Sequence]) -> list[SequenceTimes]:
        """Add all requests, which arrive now. Raises ValueError for one that can never fit."""

    def step(self) -> ServedStep: ...


class EngineServer:
    """The finished engine, with its scheduler and timestamps. Steps run in turn, as in the posts, so times add up."""

    def __init__(
        self, model: Model, places: int, num_blocks: int, clock: Clock, enforce_eager: bool, prefix_caching: bool
    ) -> None:
        self.driven = Engine(
            prepared_copy(model),
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=places,
            enforce_eager=enforce_eager,
            enable_prefix_caching=prefix_caching,
            async_scheduling=False,
        )
        self.driven.warm_up()
        self.driven.metrics.clock = clock

    @property
    def has_work(self) -> bool:
        return self.driven.has_work

    def add_all(self, seqs: list[Sequence]) -> list[SequenceTimes]:
        arrival = self.driven.metrics.clock()
        return [self.driven.add(seq, arrival) for seq in seqs]

    def step(self) -> ServedStep:
        decoded = [seq for seq in self.driven.step() if len(seq.output_ids) > 1]
        step = self.driven.metrics.history[-1]
        seconds, prompt_tokens = step.finish - step.scheduled, step.num_tokens - len(decoded)
        return ServedStep(seconds, prompt_tokens, tuple(len(seq) - 1 for seq in decoded))


class StageServer:
    """A stage that generate.stream drives: prefill a request when there is a place, then decode all that run."""

    def __init__(self, stage_class: type[Stage], model: Model, places: int, num_blocks: int, clock: Clock) -> None:
        self.driven = stage_class(model, num_blocks=num_blocks, block_size=BLOCK_SIZE, max_num_seqs=places)
        self.watched: Any = WatchedStage(self.driven)  # all that a Stage has
        self.clock = clock
        self.seqs: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return not all(seq.finish_reason for seq in self.seqs)

    def add_all(self, seqs: list[Sequence]) -> list[SequenceTimes]:
        arrival = self.clock()
        self.seqs, self.timekeeper = seqs, Timekeeper()
        times = [self.timekeeper.begin(seq, arrival) for seq in seqs]
        self.tokens = stream(self.watched, seqs)
        return times

    def step(self) -> ServedStep:
        """Call the stage once, and do what stream does before and after the call."""
        began = self.clock()
        next(self.tokens)
        ended = self.clock()
        seqs, prompt_tokens = self.watched.call
        for _ in seqs[1:]:
            next(self.tokens)  # the other tokens of the same call
        context_lens = () if prompt_tokens else tuple(len(seq) - 1 for seq in seqs)
        self.timekeeper.begin_step(seqs, began)
        step = StepRecord(began, began, ended, ended, prompt_tokens or len(seqs), len(seqs))
        self.timekeeper.end_step(step, seqs)
        return ServedStep(ended - began, prompt_tokens, context_lens)


class WatchedStage:
    """A stage that keeps its last call in `call`: the sequences, and for a prefill the tokens of their prompts."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def first_tokens(self, seqs: list[Sequence]) -> list[int]:
        self.call = list(seqs), sum(map(len, seqs))
        return self.stage.first_tokens(seqs)

    def next_tokens(self, seqs: list[Sequence]) -> list[int]:
        self.call = list(seqs), 0
        return self.stage.next_tokens(seqs)


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
    server = server_for(stage_class, model, workload, places, prefix_caching, clock)
    encode_seconds, seqs = [], []
    for prompt in workload.prompts:
        began = 0.0 if workload.is_encoded else clock()
        seqs.append(Sequence(workload.encode(prompt), workload.params))
        encode_seconds.append(0.0 if workload.is_encoded else clock() - began)
    times = server.add_all(seqs)
    steps: list[ServedStep] = []

    def decode_step() -> None:
        """Step on to the end of the next decode step, or of all work."""
        while server.has_work:
            steps.append(server.step())
            if not steps[-1].prompt_tokens:
                after_step(server.driven)
                return

    trace = profile_steps(decode_step, server) if profile else None
    while server.has_work:
        decode_step()
    parts = zip(seqs, encode_seconds, times, strict=True)
    requests = tuple(
        ServedRequest(seq.num_prompt_tokens, tuple(seq.output_ids), seconds, own) for seq, seconds, own in parts
    )
    return ServerRun(mode, requests, tuple(steps)), trace


def server_for(
    stage_class: type[Stage], model: Model, workload: Workload, places: int, prefix_caching: bool, clock: Clock
) -> Server:
    """Make a server with the blocks that all requests need at their longest, whatever the number of places."""
    longest = [length + workload.params.most_tokens for length in workload.prompt_lens]
    num_blocks = sum(-(-(n - 1) // BLOCK_SIZE) for n in longest)  # the last token is returned, never cached
    if issubclass(stage_class, EngineStage):
        return EngineServer(model, places, num_blocks, clock, stage_class.enforce_eager, prefix_caching)
    return StageServer(stage_class, model, places, num_blocks, clock)


def profile_steps(decode_step: Callable[[], None], server: Server) -> Trace:
    """Profile by the posts' schedule: wait for one step, warm up for two, record three."""
    done = 0

    def step() -> None:
        nonlocal done
        if not server.has_work:
            raise ValueError(
                "a profile takes six decode steps (wait 1, warm up 2, record 3), and no sequence is left to decode "
                f"after {done}; ask for more tokens or requests"
            )
        decode_step()
        done += 1

    return capture(step, steps=3, warmup=2)
