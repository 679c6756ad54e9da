"""Post 003: its ways to run the steps, by the engine's executors on a device with a clock of its own.

Two batches in flight are two engines that share a device: while it computes a step of the one, the host commits and
launches the other's.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import mean, median
from typing import Any, TypeVar

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import random_prompts
from roseinfer.drive import drive
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.models import Model
from roseinfer.models.weights import prepared_copy
from roseinfer.overlap import Launched, OwnClock
from roseinfer.planning.definitions import METRICS_BY_NAME
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.sequence import SamplingParams, Sequence

from ..data import COMPUTED, KINDS, Source, post_table, source_of
from ..planned import engine_of
from ..report.content import Grid, Ruled, Time, judged
from ..report.setting import Setting
from ..report.template import Values

BATCH, REQUESTS, TOKENS, PROMPT_LEN = 8, 16, 12, 8
REPEATS, QUICK_REPEATS = 3, 1
IN_TURN, ONE_BEHIND, TWO_IN_FLIGHT = "in turn", "one step behind", "two batches in flight"
T = TypeVar("T")


def engine(setting: Setting) -> PlannedEngine:
    """Plan an engine for one batch on the CPU. A modelled device clock makes its steps as long as the post's."""
    config = setting.engine(setting.model or "tiny", BATCH, PROMPT_LEN + TOKENS, dtype="float32")
    return replace(config, device="cpu")


class RecordingDevice(OwnClock):
    """A device that keeps the times and tokens of each of its steps."""

    def __init__(self, seconds: Callable[[int], float] | None) -> None:
        super().__init__(seconds)
        self.done: list[Launched] = []
        self.num_tokens = 0

    def launch(self, work: Callable[[], T], num_tokens: int) -> Launched[T]:
        launched = super().launch(work, num_tokens)
        self.done.append(launched)
        self.num_tokens += num_tokens
        return launched


@dataclass(frozen=True)
class ExecutorRun:
    """One run. seqs and times: in the order in which the requests came. device: what it did."""

    seqs: list[Sequence]
    times: list[SequenceTimes]
    device: RecordingDevice = field(repr=False)

    @property
    def seconds(self) -> float:
        return max(own.ended for own in self.times) - self.times[0].arrival

    @property
    def finishes(self) -> list[float]:
        """Ends of the steps that gave tokens, in order."""
        return sorted({step.finish for own in self.times for step in own.steps})

    @property
    def gaps(self) -> list[int]:
        """Number of device steps from each token to the next one of its request."""
        at = {finish: i for i, finish in enumerate(self.finishes)}
        return [at[after.finish] - at[before.finish] for own in self.times for before, after in pairwise(own.steps)]

    @property
    def held(self) -> list[int]:
        """The post's latency of each token: how many device steps end between its being scheduled and its end."""
        ends = self.finishes
        return [sum(step.scheduled < end <= step.finish for end in ends) for own in self.times for step in own.steps]

    @property
    def surplus(self) -> int:
        """Number of tokens that the device computed after the end of a request that had stopped."""
        return self.device.num_tokens - sum(len(seq) - 1 for seq in self.seqs)

    def mean(self, metric: str) -> float:
        """Return the mean seconds of an engine's metric. Its latency of a token is the post's, too."""
        return mean(seconds for own in self.times for seconds in METRICS_BY_NAME[metric].values(own))

    @property
    def busy(self) -> float:
        """The share of the time from its first step to its last in which the device computes."""
        done = self.device.done
        return sum(work.ended - work.began for work in done) / (done[-1].ended - done[0].began)

    def record(self) -> dict[str, Any]:
        began = self.times[0].arrival
        return {
            "seconds": self.seconds,
            "latency": self.mean("latency"),
            "itl": self.mean("itl"),
            "busy": self.busy,
            "device": [[work.began - began, work.ended - began] for work in self.device.done],
        }


def run(
    config: PlannedEngine,
    model: Model,
    executor: str,
    params: abc.Sequence[SamplingParams],
    seconds: Callable[[int], float] | None = None,
) -> ExecutorRun:
    """Run a request for each of params, all at once. seconds: how long the device takes for so many tokens."""
    device = RecordingDevice(seconds)
    num_engines = 2 if executor == TWO_IN_FLIGHT else 1
    engines = [engine_of(config, model, async_scheduling=executor == ONE_BEHIND) for _ in range(num_engines)]
    for engine in engines:
        engine.warm_up()
        engine.runner.thread = device
    prompts = random_prompts(model, len(params), PROMPT_LEN)
    seqs = [Sequence(prompt, own) for prompt, own in zip(prompts, params, strict=True)]
    share, arrival = -(-len(seqs) // len(engines)), engines[0].metrics.clock()
    times = [engines[i // share].add(seq, arrival) for i, seq in enumerate(seqs)]
    if executor == TWO_IN_FLIGHT:
        take_turns(engines)
    else:
        list(drive(engines[0]))
    for work in device.done:
        work.wait()  # the surplus of the last step, too
    return ExecutorRun(seqs, times, device)


def take_turns(engines: list[Engine]) -> None:
    """Keep a step of each engine in flight: the device computes one while the host commits and launches another."""
    flights = {i: engine.launch() for i, engine in enumerate(engines)}
    while flights:
        for i in list(flights):
            engine = engines[i]
            step = flights.pop(i)
            assert step is not None, "launched while there was work"
            engine.commit(step)
            if engine.has_work:
                flights[i] = engine.launch()


def section(about: Mapping[str, Any], setting: Setting) -> Values:
    config = engine(setting)
    model = prepared_copy(setting.load(config))
    whole = [SamplingParams(max_tokens=TOKENS, ignore_eos=True)] * REQUESTS
    counted = {name: run(config, model, name, whole) for name in (IN_TURN, ONE_BEHIND, TWO_IN_FLIGHT)}
    stopping = stopped(config, model, counted[IN_TURN])
    same = {
        name: sum(a.output_ids == b.output_ids for a, b in zip(own.seqs, counted[IN_TURN].seqs, strict=True))
        for name, own in counted.items()
    }
    rows, times, samples = [], [], {}
    for row in post_table("003", "steps").itertuples():
        name = f"steps of {row.step_ms:g} ms"
        setting.say(f"executors, {name}")
        taken = race(config, model, whole, row.step_ms / 1e3, QUICK_REPEATS if setting.quick else REPEATS)
        samples[name] = {executor: [each.record() for each in runs] for executor, runs in taken.items()}
        for executor, runs in taken.items():
            figures = ((REQUESTS / own.seconds, own.mean("latency"), own.mean("itl"), own.busy) for own in runs)
            speed, latency, itl, busy = map(median, zip(*figures, strict=True))
            posted = round(100 * (1 - row.host_ms / row.step_ms), 1) if executor == IN_TURN else None
            source = Source(COMPUTED, f"{row.host_ms} ms of {row.step_ms} in which the device waits")
            times += [
                Time(f"throughput, {name}, {executor}", "requests/s", None, speed),
                Time(f"latency, {name}, {executor}", "ms", None, 1e3 * latency),
                Time(f"token to token, {name}, {executor}", "ms", None, 1e3 * itl),
                Time(f"device busy, {name}, {executor}", "%", posted, 100 * busy, source=source if posted else None),
            ]
    gap, held = ({n: max(getattr(own, what)) for n, own in counted.items()} for what in ("gaps", "held"))
    for name, own in [*counted.items(), (f"{ONE_BEHIND}, stopped by a token", stopping)]:
        rows.append([name, len(own.finishes), max(own.held), max(own.gaps, default=None), own.surplus])
    kind = KINDS[source_of(about, "executors.batches_in_flight").kind]
    titles = {"batches_in_flight": f"batches in flight ({kind})", "overlaps": "what overlaps"}
    return {
        "model": config.model,
        "num_requests": REQUESTS,
        "num_tokens": TOKENS,
        "batch": BATCH,
        "facts": judged(
            "003",
            {
                **{f"latency in device steps, {name}": held[name] for name in (TWO_IN_FLIGHT, ONE_BEHIND)},
                f"device steps from a token to the next, {TWO_IN_FLIGHT}": gap[TWO_IN_FLIGHT],
                f"device steps from a token to the next, {ONE_BEHIND}": Ruled(gap[ONE_BEHIND], gap[IN_TURN]),
                **{
                    f"requests with the tokens of steps in turn, {name}": same[name]
                    for name in (ONE_BEHIND, TWO_IN_FLIGHT)
                },
            },
        ),
        "times": times,
        "steps": rows,
        "executors": Grid.of(post_table("003", "executors").rename(columns=titles)),
        "samples": samples,
    }


def stopped(config: PlannedEngine, model: Model, whole: ExecutorRun) -> ExecutorRun:
    """Run one step behind, with a stop token halfway through each output, so that no end is known ahead."""
    params = [
        SamplingParams(max_tokens=TOKENS, ignore_eos=True, stop_token_ids=(seq.output_ids[TOKENS // 2],))
        for seq in whole.seqs
    ]
    return run(config, model, ONE_BEHIND, params)


def race(
    config: PlannedEngine, model: Model, params: abc.Sequence[SamplingParams], step_seconds: float, repeats: int
) -> dict[str, list[ExecutorRun]]:
    """Run the executors in turn, after a warm-up; the device takes at least step_seconds for every step."""
    contenders = {
        name: partial(run, config, model, name, params, lambda num_tokens: step_seconds)
        for name in (IN_TURN, ONE_BEHIND, TWO_IN_FLIGHT)
    }
    return interleaved(contenders, repeats, warmup=1)
