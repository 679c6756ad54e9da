"""record_lanes: what host and device do at which time, on any stage that hands its steps to a device.

Two kinds of clock. Model: host work and device work last as long as `Speeds` says, the steps are real, and a run is
the same every time. Wall: the time that the run takes, on the device that the stage has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

from roseinfer.bench.workload import Work
from roseinfer.drive import WallClock, drive_by_clock
from roseinfer.overlap import InTurn, Launched
from roseinfer.sequence import SamplingParams, Sequence

from ..measure.request_run import ModelClock, name_of

HOST, COPY, DEVICE = "host", "copy engine", "device"
PLAN, COMMIT, UPLOAD, COMPUTE = "plan", "commit", "upload", "compute"


@dataclass(frozen=True, slots=True)
class Speeds:
    """Times of a step, in ms.

    plan: schedule, write the inputs, launch. commit: read, append, free. device: computing. upload: copying the inputs
    before it; with a copy_engine this overlaps the step before, else the device itself does it.
    """

    plan: float
    commit: float
    device: float
    upload: float = 0
    copy_engine: bool = False


class LaneSpan(NamedTuple):
    """A span of work in a lane, in ms since the run began. step: the number of the step."""

    lane: str
    what: str
    step: int
    begin: float
    end: float


@dataclass(frozen=True)
class Lanes:
    """What host and device did in one run.

    is_model: its times are a model's, and exact. planned: when each request was first planned. tokens: when each
    request got which token. outputs: the tokens. sizes: how many tokens each step computed.
    """

    name: str
    is_model: bool
    spans: list[LaneSpan]
    planned: list[float]
    tokens: list[list[float]]
    outputs: list[list[int]]
    sizes: list[int] = field(default_factory=list)

    @property
    def end(self) -> float:
        return max(span.end for span in self.spans)

    def busy(self, lane: str) -> float:
        return sum(span.end - span.begin for span in self.spans if span.lane == lane)

    @property
    def bubbles(self) -> float:
        """Time in ms that the device was idle between its first step and its last."""
        own = [span for span in self.spans if span.lane == DEVICE]
        return own[-1].end - own[0].begin - self.busy(DEVICE)

    def latency(self, request: int) -> float:
        """Return the time from a request's first plan to its last token (post 003's `latency` is that of one step)."""
        return self.tokens[request][-1] - self.planned[request]

    def gap(self, request: int) -> float:
        """Compute the mean time from one token of a request to its next."""
        times = self.tokens[request]
        return (times[-1] - times[0]) / (len(times) - 1)


def record_lanes(
    stage: Any,
    work: Work,
    speeds: Speeds | None = None,
    host_ms: float = 0,
    name: str | None = None,
    stops: tuple[int, ...] = (),
) -> Lanes:
    """Run all of `work` greedily, and record what host and device did. Arrivals are in ms of the clock.

    stage: with add, step, has_work, schedule, commit and a device, as from stage 16 on; it is left as it was.
    speeds: a model's clock, and a device of that speed in place of the stage's. None: the wall's clock, and its own.
    host_ms: how long the host sleeps in each commit of a run by the wall clock, in place of work that a server has and
    this stage does not. stops: token ids that end a request.

    Raises ValueError for a stage without a device, or with work of its own.
    """
    if not hasattr(stage, "device") or not hasattr(stage, "schedule"):
        raise ValueError(f"stage must hand its steps to a device, as from s16 on; {name_of(stage)} does not")
    if stage.has_work:
        raise ValueError(f"stage must have no work before the run, and {name_of(stage)} has")
    params = [SamplingParams(max_tokens=a.output_len, ignore_eos=True, stop_token_ids=stops) for a, _ in work]
    seqs = [Sequence(prompt, own) for (_, prompt), own in zip(work, params, strict=True)]
    recorder = _LaneRecorder(stage, speeds, host_ms, seqs)
    coming = zip((arrival.seconds for arrival, _ in work), seqs, strict=True)
    with recorder.listening():
        list(drive_by_clock(stage, coming, recorder.clock, lambda seq, when: stage.add(seq)))
    return recorder.lanes(name or name_of(stage))


class _WallClockMs(WallClock):
    def now(self) -> float:
        return self.at(self.clock())

    def at(self, seconds: float) -> float:
        """Convert a time of perf_counter, in seconds, to this clock."""
        return 1e3 * (seconds - self.began)

    def spend(self, ms: float) -> None:
        self.sleep(1e-3 * ms)

    def wait_until(self, then: float) -> None:
        self.spend(max(0.0, then - self.now()))


class _ModelDevice:
    """A device that does the work at once, and reports it done when a device of that speed would be done."""

    def __init__(self, clock: ModelClock, speeds: Speeds) -> None:
        self.clock, self.speeds = clock, speeds
        self.copies_until = self.computes_until = 0.0

    def launch(self, work: Callable[[], Any], num_tokens: int) -> _Promised:
        done, speeds, now = InTurn().launch(work, num_tokens), self.speeds, self.clock.now()
        if speeds.copy_engine:
            uploaded = self.copies_until = max(now, self.copies_until) + speeds.upload
        else:
            uploaded = max(now, self.computes_until) + speeds.upload
        began = max(uploaded, self.computes_until)
        self.computes_until = began + speeds.device
        return _Promised(done, self.clock, uploaded - speeds.upload, uploaded, began, self.computes_until)


@dataclass(slots=True)
class _Promised:
    """Work of a model's device. A host that asks for its result waits, by the model's clock."""

    done: Launched[Any]
    clock: ModelClock
    upload_began: float
    upload_ended: float
    began: float
    ended: float

    def wait(self) -> None:
        self.clock.wait_until(self.ended)

    def result(self) -> Any:
        self.wait()
        return self.done.result()


class _LaneRecorder:
    """A recorder of the lanes of host and device, from a stage's schedule and commit, and as its device."""

    def __init__(self, stage: Any, speeds: Speeds | None, host_ms: float, seqs: list[Sequence]) -> None:
        self.stage, self.speeds, self.seqs = stage, speeds, seqs
        self.plan_ms, self.commit_ms = (speeds.plan, speeds.commit) if speeds else (0.0, host_ms)
        self.clock: Any = _WallClockMs()
        self.device: Any = stage.device
        if speeds is not None:
            self.clock = ModelClock(0.0)
            self.device = _ModelDevice(self.clock, speeds)
        self.spans: list[LaneSpan] = []
        self.launched: list[Any] = []
        self.sizes: list[int] = []
        self.planned: dict[int, float] = {}  # by seq_id
        self.tokens: dict[int, list[float]] = {seq.seq_id: [] for seq in seqs}
        self.num_committed, self.plan_began = 0, 0.0

    def listening(self) -> AbstractContextManager[Any]:
        """Route calls of the stage's methods and its device through this recorder, inside a `with`."""
        schedule, commit = partial(self._schedule, self.stage.schedule), partial(self._commit, self.stage.commit)
        return patch.multiple(self.stage, device=self, schedule=schedule, commit=commit)

    def _schedule(self, schedule: Callable[[], Any]) -> Any:
        self.plan_began = self.clock.now()
        seqs, num_new = schedule()
        for seq in seqs:
            self.planned.setdefault(seq.seq_id, self.plan_began)
        return seqs, num_new

    def launch(self, work: Callable[[], Any], num_tokens: int) -> Any:
        self.clock.spend(self.plan_ms)
        self._note(PLAN, len(self.launched), self.plan_began)
        self.launched.append(self.device.launch(work, num_tokens))
        self.sizes.append(num_tokens)
        return self.launched[-1]

    def _commit(self, commit: Callable[..., Any], seqs: list[Sequence], tokens: list[int]) -> Any:
        began = self.clock.now()
        done = commit(seqs, tokens)
        self.clock.spend(self.commit_ms)
        self._note(COMMIT, self.num_committed, began)
        self.num_committed += 1
        for seq in done:
            self.tokens[seq.seq_id].append(self.clock.now())
        return done

    def _note(self, what: str, step: int, began: float) -> None:
        self.spans.append(LaneSpan(HOST, what, step, began, self.clock.now()))

    def lanes(self, name: str) -> Lanes:
        for step, launched in enumerate(self.launched):
            if self.speeds is None:
                began, ended = map(self.clock.at, (launched.began, launched.ended))
                self.spans.append(LaneSpan(DEVICE, COMPUTE, step, began, ended))
                continue
            if self.speeds.upload:
                lane = COPY if self.speeds.copy_engine else DEVICE
                self.spans.append(LaneSpan(lane, UPLOAD, step, launched.upload_began, launched.upload_ended))
            self.spans.append(LaneSpan(DEVICE, COMPUTE, step, launched.began, launched.ended))
        return Lanes(
            name,
            self.speeds is not None,
            self.spans,
            [self.planned[seq.seq_id] for seq in self.seqs],
            [self.tokens[seq.seq_id] for seq in self.seqs],
            [seq.output_ids for seq in self.seqs],
            self.sizes,
        )
