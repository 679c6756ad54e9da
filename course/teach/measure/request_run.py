"""record_run: requests that arrive at any time, over any stage, and what became of each in which step."""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import Any, NamedTuple
from unittest.mock import patch

from roseinfer.arrivals import Arrival, require_order
from roseinfer.bench.workload import Work, with_prompts
from roseinfer.drive import WallClock, drive_by_clock
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import Step, StepRecord
from roseinfer.models import Model
from roseinfer.planning.definitions import summary
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .request_loops import PromptByPrompt
from .step_pool import PoolSize, PoolWatch, StepPool

StepTime = Callable[[int], float]  # how long a step of that many tokens lasts

PROMPT, RECOMPUTED, DECODE = "prompt", "recomputed", "decode"


class Row(NamedTuple):
    """Request in a step. request: its place among the arrivals. num_new: how many of its tokens the step computes.

    num_cached: tokens in the cache before. num_recomputed: new tokens that a step had computed before. got_token:
    whether it got a new token; a prompt that is cut gets none.
    """

    request: int
    num_new: int
    num_cached: int
    num_recomputed: int
    kind: str
    got_token: bool


@dataclass(frozen=True, slots=True)
class RunStep:
    """One step. times: as the engine keeps them (engine/step.py). rows: in the step's order.

    num_captures: graphs that it captured, which takes as long as several steps. pool: None if the run has no pool_size.
    """

    times: StepRecord
    rows: tuple[Row, ...]
    num_captures: int = 0
    pool: StepPool | None = None

    @property
    def num_tokens(self) -> int:
        return sum(row.num_new for row in self.rows)

    def tokens_of(self, kind: str) -> int:
        return sum(row.num_new for row in self.rows if row.kind == kind)


@dataclass(eq=False, slots=True)
class RunRequest:
    """One request. times: as the engine keeps them. preempted: when it gave its blocks back, by the run's clock."""

    arrival: Arrival
    seq: Sequence
    times: SequenceTimes
    preempted: list[float] = field(default_factory=list)
    most_cached: int = 0  # tokens that some step has computed


@dataclass(frozen=True)
class Run:
    """One run. clock: "steps", "seconds" or "model", the unit of its times. requests: in the order of the arrivals.

    budget: tokens of a step at most, None for no limit. The `request` of a step's row is a place in `requests`.
    pool_size: of a stage from 14 on; None for other loops, and by the wall clock, where looking would take time.
    """

    name: str
    clock: str
    budget: int | None
    requests: list[RunRequest]
    steps: list[RunStep]
    pool_size: PoolSize | None = None

    @property
    def outputs(self) -> list[list[int]]:
        return [request.seq.output_ids for request in self.requests]

    @property
    def end(self) -> float:
        return self.steps[-1].times.finish

    @property
    def num_preemptions(self) -> int:
        return sum(len(request.preempted) for request in self.requests)

    @property
    def num_captures(self) -> int:
        """Graphs captured in its steps. A run whose times are compared should have none: run the stage once before."""
        return sum(step.num_captures for step in self.steps)

    def tokens_of(self, kind: str) -> int:
        return sum(step.tokens_of(kind) for step in self.steps)

    def rows_of(self, request: int) -> Iterator[tuple[int, Row]]:
        """Yield the number of each step that computed a part of one request, and the request's row in it."""
        for number, step in enumerate(self.steps):
            yield from ((number, row) for row in step.rows if row.request == request)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Sum up the metrics of planning/definitions.py, in units of the clock."""
        return summary(request.times for request in self.requests)


def work(model: Model, arrivals: abc.Sequence[Arrival | tuple[float, int, int]], seed: int = 0) -> Work:
    """Make requests with prompts of random ids. arrivals: (when, prompt_len, output_len) each, or Arrival.

    Raises ValueError for no arrivals, one out of order, or a bad value.
    """
    own = [arrival if isinstance(arrival, Arrival) else Arrival(*arrival) for arrival in arrivals]
    require_order(own)
    return with_prompts(own, model, seed)


def record_run(stage: Any, work: Work, clock: str | StepTime = "steps", name: str | None = None) -> Run:
    """Run all of `work` greedily, each request to its full output length, and record every step.

    stage: anything with add, step, has_work, schedule and commit (stages from 14 on, an Engine, a RequestLoop); another
    stage runs in the loop of roseinfer.generate. It is watched from outside and left as it was.
    clock: "steps", where each step lasts 1 and arrivals are in steps, so that a run is the same every time; a function
    from a step's tokens to how long it lasts, which is as exact; or "wall", where arrivals are in seconds.
    name: of the run in pictures; None: the stage's name and its budget.

    Raises ValueError for another clock, a stage that has work of its own, and a request that can never fit.
    """
    if not (callable(clock) or clock in ("steps", "wall")):
        raise ValueError(f'clock must be "steps", "wall" or a function of a step\'s tokens, got {clock!r}')
    loop = PromptByPrompt(stage) if isinstance(stage, Stage) and not hasattr(stage, "add") else stage
    if loop.has_work:
        raise ValueError(f"stage must have no work before the run, and {name_of(stage)} has")
    recorder = _RequestRecorder(loop, None if clock == "wall" else clock if callable(clock) else lambda num_tokens: 1)
    requests = [recorder.request(arrival, prompt) for arrival, prompt in work]
    coming = ((request.times.arrival, request) for request in requests)
    try:
        with recorder.listening():
            list(drive_by_clock(loop, coming, recorder.clock, lambda request, when: recorder.add(request)))
    finally:
        for request in recorder.requests.values():
            if not request.seq.finish_reason:
                loop.abort(request.seq)
    unit = "model" if callable(clock) else {"steps": "steps", "wall": "seconds"}[clock]
    budget = getattr(recorder.queue, "max_num_batched_tokens", None)
    if name is None:
        name = name_of(loop) if budget is None else f"{name_of(loop)}, budget {budget}"
    return Run(name, unit, budget, requests, recorder.steps, recorder.pool.size if recorder.pool else None)


def name_of(stage: Any) -> str:
    return getattr(stage, "name", type(stage).__name__)


def num_graphs(loop: Any) -> int:
    """Count the graphs that a stage, the stage of a RequestLoop or an Engine has captured so far."""
    if hasattr(loop, "runner"):
        return len(loop.runner.graphs.graphs) if loop.runner.graphs else 0
    return len(getattr(getattr(loop, "stage", loop), "graphs", ()))


class ModelClock:
    """Clock that stands still until time is spent, or waited for."""

    def __init__(self, time: float = 0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time

    def spend(self, duration: float) -> None:
        self.time += duration

    def wait_until(self, then: float) -> None:
        self.time = max(self.time, then)


class _RequestRecorder:
    """Records what becomes of requests, from a queue's schedule, commit and preempt.

    schedule says which requests are in a step, and commit which got a token. Several steps may be scheduled before the
    first of them is committed. step_time: of a model's clock; None for the wall clock.
    """

    def __init__(self, loop: Any, step_time: StepTime | None) -> None:
        self.loop, self.step_time = loop, step_time
        self.clock: Any = ModelClock() if step_time else WallClock()
        self.queue = getattr(loop, "scheduler", loop)  # of an Engine
        self.requests: dict[int, RunRequest] = {}  # by seq_id
        self.places: dict[int, int] = {}
        self.steps: list[RunStep] = []
        self._num_graphs = num_graphs(loop)
        self.pool = PoolWatch.of(self.queue) if step_time else None
        self._scheduled: deque[tuple[StepRecord, list[Row], StepPool | None]] = deque()

    def request(self, arrival: Arrival, prompt: list[int]) -> RunRequest:
        seq = Sequence(prompt, SamplingParams(max_tokens=arrival.output_len, ignore_eos=True))
        return RunRequest(arrival, seq, SequenceTimes(arrival.seconds))

    def add(self, request: RunRequest) -> None:
        self.loop.add(request.seq)
        self.places[request.seq.seq_id] = len(self.requests)
        self.requests[request.seq.seq_id] = request

    def listening(self) -> AbstractContextManager[Any]:
        """Let this recorder hear the calls of the queue's methods, until the context is left."""
        listeners = {"schedule": self._schedule, "commit": self._commit, "preempt": self._preempt}
        methods: dict[str, Any] = {
            name: partial(listener, getattr(self.queue, name))
            for name, listener in listeners.items()
            if hasattr(self.queue, name)
        }
        return patch.multiple(self.queue, **methods)

    def _schedule(self, schedule: Callable[..., Any], *args: Any, **named: Any) -> Any:
        scheduled = self.clock.now()
        step = schedule(*args, **named)
        seqs, num_new = (step.seqs, step.num_new) if isinstance(step, Step) else step  # an engine's, or a stage's
        rows = [self._row(seq, n) for seq, n in zip(seqs, num_new, strict=True)]
        num_waiting = getattr(self.queue, "num_waiting", None)
        load = len(self.queue.running), len(self.queue.waiting) if num_waiting is None else num_waiting
        times = StepRecord(scheduled, self.clock.now(), nan, nan, sum(num_new), 0, *load)
        pool = self.pool.look([request.seq for request in self.requests.values()]) if self.pool else None
        self._scheduled.append((times, rows, pool))
        return step

    def _row(self, seq: Sequence, n: int) -> Row:
        request, begin = self.requests[seq.seq_id], seq.num_launched_tokens
        again = max(0, min(request.most_cached, begin + n) - begin)
        kind = RECOMPUTED if again else PROMPT if begin < seq.num_prompt_tokens else DECODE
        request.most_cached = max(request.most_cached, begin + n)
        return Row(self.places[seq.seq_id], n, begin, again, kind, got_token=False)

    def _commit(self, commit: Callable[..., Any], *args: Any, **named: Any) -> Any:
        times, rows, pool = self._scheduled.popleft()
        if self.step_time:
            self.clock.spend(self.step_time(times.num_tokens))
        ended = self.clock.now()
        done = commit(*args, **named)
        times = times._replace(inference_end=ended, finish=self.clock.now(), num_new_tokens=len(done))
        got = {self.places[seq.seq_id] for seq in done}
        captured, self._num_graphs = num_graphs(self.loop) - self._num_graphs, num_graphs(self.loop)
        told = tuple(row._replace(got_token=row.request in got) for row in rows)
        self.steps.append(RunStep(times, told, captured, pool))
        requests = [*self.requests.values()]
        for row in told:
            request = requests[row.request]
            request.times.add(times, row.got_token, row.got_token and bool(request.seq.finish_reason))
        return done

    def _preempt(self, preempt: Callable[..., Any], seq: Sequence) -> Any:
        num_blocks = self.pool.num_blocks(seq) if self.pool else 0
        result = preempt(seq)  # which may refuse
        if self.pool:
            self.pool.gave_back(self.places[seq.seq_id], num_blocks)
        self.requests[seq.seq_id].preempted.append(self.clock.now())
        return result
