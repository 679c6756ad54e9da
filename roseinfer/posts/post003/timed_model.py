"""When a stage's model ran, read from the clock without a profiler; and from it the host's share of a decode step."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from roseinfer.bench.interleave import Clock
from roseinfer.bench.ladder import random_prompts
from roseinfer.engine.config import EngineConfig
from roseinfer.generate import begin, decode_step
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage


class TimedModel:
    """Stands in for a stage's model. calls: (begin, end) of each forward, from the first layer to the logits.

    On a GPU both wait until the device has nothing left to do, so that the device's time lies inside.
    """

    def __init__(self, model: Model, clock: Clock = perf_counter) -> None:
        self.model = model
        self.clock = clock
        self.calls: list[tuple[float, float]] = []
        self._began = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, *arguments: Any) -> Tensor:
        self._began = self.now()
        return self.model(*arguments)

    def logits(self, hidden: Tensor) -> Tensor:
        logits = self.model.logits(hidden)
        self.calls.append((self._began, self.now()))
        return logits

    def now(self) -> float:
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)
        return self.clock()


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


def build_stage(stage_class: type[Stage], model: Model | TimedModel, config: EngineConfig) -> Stage:
    """The stage with the sizes of `config`, on a model that is loaded already."""
    return stage_class(
        model, num_blocks=config.num_blocks, block_size=config.block_size, max_num_seqs=config.max_num_seqs
    )


def host_shares(
    stages: List[type[Stage]], model: Model, config: EngineConfig, *, prompt_len: int, steps: int
) -> list[HostShare]:
    """`steps` decode steps of each stage, interleaved, after one each that is not counted.

    config: the stages' sizes; its max_num_seqs is the batch.
    """
    runs = [_Run(build_stage(stage, TimedModel(model), config), prompt_len, steps) for stage in stages]
    for _ in range(steps):
        for run in runs:
            run.step()
    return [HostShare(run.stage.name, run.step_seconds, run.forward_seconds) for run in runs]


class _Run:
    def __init__(self, stage: Stage, prompt_len: int, steps: int) -> None:
        self.stage = stage
        prompts = random_prompts(stage.model, stage.max_num_seqs, prompt_len)
        self.seqs = begin(stage, prompts, SamplingParams(max_tokens=steps + 2, ignore_eos=True))
        decode_step(stage, self.seqs)
        self.step_seconds: list[float] = []
        self.forward_seconds: list[float] = []

    def step(self) -> None:
        model = self.stage.model
        began = model.now()
        decode_step(self.stage, self.seqs)
        self.step_seconds.append(model.now() - began)
        forward_began, forward_ended = model.calls[-1]
        self.forward_seconds.append(forward_ended - forward_began)
