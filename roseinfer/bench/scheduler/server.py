"""Serving as in the posts: a request is prefilled when it is added, then steps decode a batch of those held.

A step takes the max_batch_size sequences that have waited longest (round robin), so with more requests than that each
waits while the others' steps run. That is the posts' online mode; offline decodes all of them in every step; naive
serves one request after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from roseinfer.arguments import require_count, unknown_name
from roseinfer.generate import commit
from roseinfer.models import Model
from roseinfer.profiling import Trace, capture
from roseinfer.profiling.clock import Clock
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..contenders import stage_for
from .workload import Workload

MODES = ("naive", "offline", "online")


@dataclass(frozen=True)
class ServedStep:
    """One decode step: seconds from choosing its batch to having its tokens on the host.

    context_lens: of each sequence, the tokens that its new token attends to, itself included.
    """

    seconds: float
    context_lens: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        return len(self.context_lens)


@dataclass(frozen=True)
class Served:
    """The life of one request, in seconds on the run's clock. output_ids: with the token that ended it."""

    prompt_len: int
    output_ids: tuple[int, ...]
    submitted: float
    first_token: float
    finished: float

    @property
    def ttft(self) -> float:
        return self.first_token - self.submitted

    @property
    def tpot(self) -> float | None:
        """None for a request of one token, which waited for no other."""
        others = len(self.output_ids) - 1
        return (self.finished - self.first_token) / others if others else None

    @property
    def latency(self) -> float:
        return self.finished - self.submitted


@dataclass(frozen=True)
class ServerRun:
    """One run of one mode. requests in the order in which they were added; add_seconds: of each request."""

    mode: str
    requests: tuple[Served, ...]
    add_seconds: tuple[float, ...]
    steps: tuple[ServedStep, ...]

    @property
    def prefill_seconds(self) -> float:
        return sum(self.add_seconds)

    @property
    def decode_seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def total_seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_len for request in self.requests)

    @property
    def completion_tokens(self) -> int:
        return sum(len(request.output_ids) for request in self.requests)


class Server:
    """Holds every request that was added and decodes them in turn, at most max_batch_size a step."""

    def __init__(self, stage: Stage, workload: Workload, max_batch_size: int, clock: Clock = perf_counter) -> None:
        require_count("max_batch_size", max_batch_size, at_least=1)
        self.stage = stage
        self.workload = workload
        self.max_batch_size = max_batch_size
        self.steps: list[ServedStep] = []
        self._clock = clock
        self._seqs: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()  # those that have waited longest for a step are in front
        self._times: list[tuple[float, float]] = []  # submitted and first token of each request
        self._finished: dict[int, float] = {}

    def add(self, prompt: str) -> None:
        """Prefill one request and take its first token. Raises ValueError for one that can never fit."""
        submitted = self._clock()
        seq = Sequence(self.workload.encode(prompt), self.workload.params)
        commit(self.stage, [seq], self.stage.first_tokens([seq]))
        first_token = self._clock()
        self._seqs.append(seq)
        self._times.append((submitted, first_token))
        self._settle([seq], first_token)

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def step(self) -> None:
        """Decode one token for each of the next sequences. Raises ValueError when none is unfinished."""
        if not self._waiting:
            raise ValueError(f"no sequence is left to decode after {len(self.steps)} steps")
        started = self._clock()
        batch = [self._waiting.popleft() for _ in range(min(self.max_batch_size, len(self._waiting)))]
        context_lens = tuple(len(seq) for seq in batch)
        commit(self.stage, batch, self.stage.next_tokens(batch))  # ends with tokens on the host, so the device is done
        now = self._clock()
        self.steps.append(ServedStep(now - started, context_lens))
        self._settle(batch, now)

    def run(self, mode: str) -> ServerRun:
        """What happened, once every request has finished."""
        served = [
            Served(seq.num_prompt_tokens, tuple(seq.output_ids), *times, self._finished[seq.seq_id])
            for seq, times in zip(self._seqs, self._times, strict=True)
        ]
        add_seconds = tuple(first_token - submitted for submitted, first_token in self._times)
        return ServerRun(mode, tuple(served), add_seconds, tuple(self.steps))

    def _settle(self, seqs: list[Sequence], now: float) -> None:
        for seq in seqs:
            if seq.finish_reason:
                self._finished[seq.seq_id] = now
            else:
                self._waiting.append(seq)


def serve(
    mode: str,
    stage_class: type[Stage],
    model: Model,
    workload: Workload,
    max_batch_size: int = 8,
    *,
    profile: bool = False,
    after_step: Callable[[Stage], None] | None = None,
    clock: Clock = perf_counter,
) -> tuple[ServerRun, Trace | None]:
    """One run on a fresh stage, which is allocated before the clock starts and big enough for all requests.

    profile: also a trace of three decode steps, after one that is not profiled and two to warm up; what the profiler
    does between steps is in no time. after_step: called with the stage between steps, in no time either.
    Raises ValueError for an unknown mode, a request that can never fit, and a profile of fewer than six steps.
    """
    if mode not in MODES:
        raise ValueError(f"mode={unknown_name(mode, MODES)}")
    stage = fresh_stage(stage_class, model, workload)
    together = {"naive": 1, "offline": len(workload.prompts), "online": max_batch_size}[mode]
    server = Server(stage, workload, together, clock)
    rounds = [[prompt] for prompt in workload.prompts] if mode == "naive" else [workload.prompts]
    trace = None

    def step() -> None:
        server.step()
        if after_step:
            after_step(stage)

    for prompts in rounds:
        for prompt in prompts:
            server.add(prompt)
        if profile and trace is None:
            trace = profile_steps(step)
        while server.busy:
            step()
    return server.run(mode), trace


def fresh_stage(stage_class: type[Stage], model: Model, workload: Workload) -> Stage:
    """A stage with just the blocks that all requests need at their longest."""
    return stage_for(stage_class, model, [length + workload.params.max_tokens for length in workload.prompt_lens])


def profile_steps(step: Callable[[], None]) -> Trace:
    """The posts' schedule: wait for one step, warm up for two, record three."""
    try:
        return capture(step, steps=3, warmup=2)
    except ValueError as error:
        raise ValueError(
            f"a profile takes six decode steps (wait 1, warm up 2, record 3): {error}; ask for more tokens or requests"
        ) from error
