"""Measured steps of the real engine, to which a cost is fitted, and real runs beside which a simulation is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from time import perf_counter

from roseinfer.arguments import require_count
from roseinfer.arrivals import Arrival, require_order
from roseinfer.drive import drive_by_clock
from roseinfer.engine.engine import Engine
from roseinfer.models import Model
from roseinfer.profiling.clock import Clock
from roseinfer.profiling.progress import OnProgress, Progress
from roseinfer.sequence import SamplingParams, Sequence

from .cost import StepSample
from .replica import EngineSetting, SimulatedRequest, params_of
from .work import work_of

# (sequences, tokens of each prompt): prompts that are computed, the same under a budget that cuts them, and prompts
# that are not, for many tokens in the cache at no cost.
PROMPTS = ((1, 16), (1, 400), (4, 64), (16, 16), (16, 64), (64, 32), (16, 250))
CUT = ((2, 400), (24, 40))
CUT_BUDGET = 96
CACHED = ((1, 200), (2, 400), (4, 100), (8, 400), (16, 170), (32, 50), (32, 300), (48, 170), (64, 90), (64, 170))
POOL_TOKENS = 12288
JOINING = (0, 24, 160)  # tokens of prompts that join those that decode, one at a time; 0: none does
STEPS = 5  # after each of them
FEW, STEPS_OF_FEW = 8, 10  # the first steps after other work are slower, and few sequences decode for long between

OnShape = Callable[[str, str, float, int], object]  # as Progress.begin: phase, name, work, repeat


def step_samples(
    model: Model,
    *,
    max_num_seqs: int = 64,
    block_size: int = 64,
    repeats: int = 5,
    seed: int = 0,
    clock: Clock = perf_counter,
    on_progress: OnProgress | None = None,
) -> list[StepSample]:
    """Measure steps of the engine in seeded shapes: prompts alone, decodes alone, prompts and chunks that join decodes.

    Each round measures every shape in turn, and begins with another one; one round before is for warm-up. Raises
    ValueError for a count below 1.
    """
    require_count("max_num_seqs", max_num_seqs, at_least=1)
    require_count("repeats", repeats, at_least=1)
    rng, samples = Random(seed), []
    measured = StepMeasure(model, max_num_seqs, block_size, clock)
    planned = {shape_name(i): 1 + repeats for i in range(len(measured.runs))}
    progress = Progress(on_progress, planned, sum(planned.values()))
    for repeat in range(-1, repeats):
        steps = measured.round(repeat, rng, progress.begin)
        if repeat >= 0:
            samples += steps
    return samples


class StepMeasure:
    """Two engines, one with a budget that cuts prompts, and what they run."""

    def __init__(self, model: Model, max_num_seqs: int, block_size: int, clock: Clock) -> None:
        self.clock, self.longest = clock, model.config.max_model_len
        num_blocks = -(-POOL_TOKENS // block_size) + max_num_seqs

        def engine(budget: int | None) -> Engine:
            setting = EngineSetting(
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=max_num_seqs,
                max_model_len=self.longest,
                max_num_batched_tokens=budget,
            )
            built = real_engine(model, setting)
            built.pool.memory.fill_(0.01)  # pages that were never written share one, which a cache holds
            return built

        whole, cut = engine(None), engine(max(CUT_BUDGET, max_num_seqs))
        most = self.longest - len(JOINING) * STEPS_OF_FEW - 1
        self.runs = [
            (used, min(num_seqs, max_num_seqs), min(prompt_len, most), is_computed)
            for used, is_computed, shapes in ((whole, True, PROMPTS), (cut, True, CUT), (whole, False, CACHED))
            for num_seqs, prompt_len in shapes
        ]

    def round(
        self, number: int, rng: Random, on_shape: OnShape = lambda phase, name, work, repeat: None
    ) -> list[StepSample]:
        phase = "warm-up" if number < 0 else f"round {number + 1}"
        samples: list[StepSample] = []
        for i in range(len(self.runs)):
            place = (number + i) % len(self.runs)
            on_shape(phase, shape_name(place), 1, number)
            samples += self.shape(*self.runs[place], rng)
        return samples

    def shape(
        self, engine: Engine, num_seqs: int, prompt_len: int, is_computed: bool, rng: Random
    ) -> Iterator[StepSample]:
        seqs: list[Sequence] = []
        sampled = SampledEngine(engine, self.clock)

        def add(length: int) -> None:
            token_ids = rng.choices(range(engine.model.config.vocab_size), k=length)
            seqs.append(Sequence(token_ids, SamplingParams(max_tokens=self.longest - length, ignore_eos=True)))
            engine.add(seqs[-1])

        for _ in range(num_seqs):
            add(prompt_len)
        while any(not seq.output_ids for seq in seqs):
            if is_computed:
                yield sampled.step()
            else:
                skip_step(engine)
        for length in JOINING:
            if length and len(seqs) < engine.scheduler.max_num_seqs:
                add(min(length, self.longest - 1))
            for _ in range(STEPS_OF_FEW if num_seqs <= FEW else STEPS):
                yield sampled.step()
        for seq in seqs:
            if seq in engine.scheduler:
                engine.abort(seq)


def shape_name(place: int) -> str:
    return f"steps of shape {place + 1}"


def skip_step(engine: Engine) -> None:
    """Do all of a step but the model: its tokens count as cached, whatever the pool has in their places."""
    step = engine.scheduler.schedule()
    assert step, "there is work"
    engine.scheduler.commit(step, [0] * len(step.chosen))


def real_engine(model: Model, setting: EngineSetting) -> Engine:
    """Make the engine of a setting, warmed up as LLM warms it."""
    longest = min(setting.max_model_len, model.config.max_model_len)
    engine = Engine(model, **setting.settings() | {"max_model_len": longest})
    engine.warm_up()
    return engine


class SampledEngine:
    """An engine as a queue for `drive`, whose steps report their work, and how long it took by its clock."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self.engine, engine.metrics.clock = engine, clock

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    def step(self) -> StepSample:
        step = self.engine.launch()
        assert step, "steps take turns, and there is work"
        work = work_of(step.seqs, step.num_new)
        self.engine.commit(step)
        at = self.engine.metrics.history[-1]
        host = at.inference_begin - at.scheduled + at.finish - at.inference_end
        return StepSample(work, host, at.inference_end - at.inference_begin)


class IdleSkipped:
    """A clock of seconds since it was made. Time with nothing to do is counted, and not waited for."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.began, self.reached = clock, clock(), 0.0

    def now(self) -> float:
        return max(self.reached, self.clock() - self.began)

    def wait_until(self, then: float) -> None:
        self.began -= then - self.now()
        self.reached = then


@dataclass(frozen=True)
class RealRun:
    """A run of the real engine. steps: in order. seconds: from the first arrival to the end of the last request."""

    steps: list[StepSample]
    requests: list[SimulatedRequest]
    num_preemptions: int

    @property
    def seconds(self) -> float:
        return max(r.end for r in self.requests) - self.requests[0].arrival.seconds


def real_run(engine: Engine, arrivals: list[Arrival], seed: int = 0, clock: Clock = perf_counter) -> RealRun:
    """Run the arrivals on an engine, each added when its second has come or, during a step, right after.

    Seconds in which the engine has nothing to do are counted and not waited for. The engine keeps the run's clock
    afterwards.
    """
    require_order(arrivals)
    ids = range(1, engine.model.config.vocab_size)
    seqs = [
        Sequence(prompt_ids(ids, seed, i, arrival), params_of(arrival.output_len)) for i, arrival in enumerate(arrivals)
    ]
    requests: list[SimulatedRequest] = []

    def add(seq: Sequence, when: float) -> None:
        requests.append(SimulatedRequest(arrivals[len(requests)], replica=0))
        requests[-1].times = engine.add(seq, when)

    before = engine.scheduler.num_preemptions
    run_clock = IdleSkipped(clock)
    coming = zip((arrival.seconds for arrival in arrivals), seqs, strict=True)
    steps = list(drive_by_clock(SampledEngine(engine, run_clock.now), coming, run_clock, add))
    return RealRun(steps, requests, engine.scheduler.num_preemptions - before)


def prompt_ids(ids: range, seed: int, number: int, arrival: Arrival) -> list[int]:
    """Draw the token ids of a prompt; requests with the same text of the prefix have the same prefix."""
    text, shared = arrival.prefix or (0, 0)
    prefix = Random(f"{seed} prefix {text}").choices(ids, k=shared)
    return prefix + Random(f"{seed} request {number}").choices(ids, k=arrival.prompt_len - shared)
