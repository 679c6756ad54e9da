"""What the reproduction of post 003 measures, from a stage's spans: a request's timestamps, and a step's host work."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from time import perf_counter

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.config import EngineConfig
from roseinfer.generate import begin, decode_step, stream
from roseinfer.models import Model
from roseinfer.profiling.clock import Clock, device_clock, seconds_of
from roseinfer.profiling.phases import DECODE, PHASES
from roseinfer.profiling.spans import SpanTimes, listening
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

FORWARD = PHASES["forward"]
CALLS = ("roseinfer.prefill", DECODE)


def build_stage(stage_class: type[Stage], model: Model, config: EngineConfig) -> Stage:
    """The stage with the sizes of `config`, on a model that is loaded already."""
    return stage_class(
        model, num_blocks=config.num_blocks, block_size=config.block_size, max_num_seqs=config.max_num_seqs
    )


# The times of a request.


@dataclass
class RequestTimes:
    """steps: for each token the timestamps of the step that made it; all in seconds of one clock.

    scheduled_ts: the stage begins the step. inference_begin_ts and inference_end_ts: the model's forward.
    finish_ts: the token is sampled and handed out.
    """

    arrival_ts: float
    steps: list[dict[str, float]] = field(default_factory=list)

    def timestamps(self, step: int) -> dict[str, float]:
        """All six timestamps of the post for one of its tokens."""
        request = {"arrival_ts": self.arrival_ts, "first_scheduled_ts": self.steps[0]["scheduled_ts"]}
        return request | self.steps[step]

    @property
    def first_token(self) -> float:
        """TTFT: from arrival to the first token, in seconds."""
        return self.steps[0]["finish_ts"] - self.arrival_ts


def record_times(stage: Stage, seqs: List[Sequence], clock: Clock = perf_counter) -> list[RequestTimes]:
    """Run all sequences to their end, all arriving at once. On a GPU the clock is read when it has nothing left to do,
    so that the device's time lies inside the forward's."""
    now = device_clock(stage.model.device, clock)
    times = {seq.seq_id: RequestTimes(now()) for seq in seqs}
    spans = SpanTimes(lambda name, around: name in (FORWARD, *CALLS), now)
    with listening(spans):
        for seq, _ in stream(stage, seqs):
            if spans.kept:  # the first token of a step
                forward, call = spans.take()
            times[seq.seq_id].steps.append({
                "scheduled_ts": call.began, "inference_begin_ts": forward.began, "inference_end_ts": forward.ended,
                "finish_ts": now(),
            })  # fmt: skip
    return [times[seq.seq_id] for seq in seqs]


# The host's share of a step.


@dataclass(frozen=True)
class HostShare:
    """Seconds of each decode step, sampling included, and of the model's forward in it."""

    stage: str
    step_seconds: List[float]
    forward_seconds: List[float]

    @property
    def step(self) -> float:
        return median(self.step_seconds)

    @property
    def host(self) -> float:
        """Seconds of a step outside of the forward: what the host does before and after it."""
        return median(step - forward for step, forward in zip(self.step_seconds, self.forward_seconds, strict=True))


def most_gain(step: float, host: float) -> float:
    """How much faster steps could come if all of the host's time were hidden behind the device's, at the very most."""
    return step / (step - host)


def host_shares(
    stages: List[type[Stage]],
    model: Model,
    config: EngineConfig,
    *,
    prompt_len: int,
    steps: int,
    clock: Clock = perf_counter,
) -> list[HostShare]:
    """`steps` decode steps of each stage, interleaved, after one each that is not counted.

    config: the stages' sizes; its max_num_seqs is the batch.
    """
    now = device_clock(model.device, clock)
    prompts = random_prompts(model, config.max_num_seqs, prompt_len)
    params = SamplingParams(max_tokens=steps + 2, ignore_eos=True)

    def contender(stage_class: type[Stage]) -> partial[tuple[float, float]]:
        stage = build_stage(stage_class, model, config)
        return partial(_step_and_forward, stage, begin(stage, prompts, params), now)

    samples = interleaved({stage.name: contender(stage) for stage in stages}, steps, warmup=1)
    return [HostShare(name, *map(list, zip(*pairs, strict=True))) for name, pairs in samples.items()]


def _step_and_forward(stage: Stage, seqs: list[Sequence], now: Clock) -> tuple[float, float]:
    """Seconds of one decode step, and of the forward in it."""
    spans = SpanTimes(lambda name, around: name == FORWARD, now)
    with listening(spans):
        seconds = seconds_of(lambda: decode_step(stage, seqs), now)
    return seconds, spans.kept[0].seconds
