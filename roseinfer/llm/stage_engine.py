"""StageEngine: a stage with a queue of its own in the place of the engine, for an LLM and its server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, NoReturn

from roseinfer.engine.config import EngineConfig
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import EngineMetrics
from roseinfer.engine.policies import FirstCome
from roseinfer.engine.step import Step
from roseinfer.models import Model
from roseinfer.sampling_params import SamplingParams
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

SIZES = {"max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"}
OF_THE_ENGINE = {own.name for own in fields(EngineConfig)} - SIZES | {"quantization", "tensor_parallel_size"}
UNCHANGED = {"tensor_parallel_size": 1}
QUEUE = ("add", "step", "abort", "has_work")
STATE = ("running", "waiting", "num_preemptions")  # what an LLM reads of a queue


def check_stage(stage: object, given: Mapping[str, Any]) -> None:
    """Raise ValueError unless `stage` is a Stage with a queue, and for an argument of LLM that a stage ignores."""
    if not (isinstance(stage, type) and issubclass(stage, Stage) and all(hasattr(stage, name) for name in QUEUE)):
        raise ValueError(f"stage must be a class derived from Stage with {', '.join(QUEUE)}, got {stage!r:.100}")
    for name, value in given.items():
        if name in OF_THE_ENGINE and value is not None and value != UNCHANGED.get(name):
            raise ValueError(f"{name}={value!r} is for the engine: a stage takes {', '.join(sorted(SIZES))}")


class StageEngine(Engine):
    """Makes the steps of an engine with a stage, which decides on its own what a step computes.

    Tokens are greedy or drawn, by temperature, top_k, top_p and seed. What else a request may ask of the engine is
    refused by name: changed logits, log-probabilities, priorities.

    stage: the stage, which has a queue. config: has the sizes that it was made with. guard: see Engine.
    """

    def __init__(self, stage: Any, config: EngineConfig, guard: Callable[[], AbstractContextManager[Any]]) -> None:
        self.stage, self.model, self.config, self.guard = stage, stage.model, config, guard
        self.max_model_len = config.longest(self.model.config)
        scheduler: Any = StageScheduler(stage)
        self.scheduler, self.blocks, self.metrics = scheduler, scheduler.blocks, EngineMetrics(scheduler)
        self.speculation = None
        self.features, self.in_flight, self.depth = [self.metrics], deque(), 1

    @classmethod
    def of(cls, stage: type[Stage], model: Model, settings: dict[str, Any], num_blocks: int, guard: Any) -> StageEngine:
        """Make the stage and its engine. settings: the sizes that were given. Raises ValueError as the stage does."""
        config = EngineConfig(num_blocks=num_blocks, **settings)
        sizes: dict[str, Any] = {"block_size": config.block_size, "max_num_seqs": config.max_num_seqs}
        if config.max_num_batched_tokens is not None:
            sizes["max_num_batched_tokens"] = config.max_num_batched_tokens
        return cls(stage(model, num_blocks=num_blocks, **sizes), config, guard)

    def warm_up(self) -> None:
        """Do nothing: a stage makes what it needs with its first steps."""

    def step(self) -> list[Sequence]:
        """Run one step of the stage, and return the sequences that have one token more. Raises as the stage does."""
        with self.guard():
            running = self.scheduler.running
            before = {seq: (len(seq), seq.num_cached_tokens) for seq in (*running, *self.scheduler.waiting)}
            step = Step([], [])
            step.scheduled = self.metrics.clock()
            self.metrics.before_launch(step)
            done = self.stage.step()
            step.ended = self.metrics.clock()
            for seq in (*self.scheduler.running, *(seq for seq in done if seq.finish_reason)):
                length, cached = before[seq]
                now = len(seq) - 1 if seq.finish_reason else seq.num_cached_tokens  # its cache is freed already
                step.seqs.append(seq)
                step.num_new.append(now - cached)
                step.num_given.append(len(seq) - length)
            self.metrics.after_tokens(step, done)
            return done

    def prompt_logprobs(self, token_ids: list[int], num_likeliest: int) -> NoReturn:
        """Raise ValueError: a stage reports none."""
        raise ValueError("prompt_logprobs are for the engine: a stage reports none")


class StageScheduler:
    """What an LLM and its server ask of an engine's scheduler, answered by a stage."""

    def __init__(self, stage: Any) -> None:
        if missing := [name for name in STATE if not hasattr(stage, name)]:
            raise ValueError(f"stage must have {', '.join(STATE)}, {type(stage).__name__} has no {missing[0]}")
        self.stage, self.policy, self.blocks = stage, AsTheyCome(), StageBlocks(stage)

    @property
    def running(self) -> list[Sequence]:
        return list(self.stage.running)

    @property
    def waiting(self) -> list[Sequence]:
        return list(self.stage.waiting)

    @property
    def num_waiting(self) -> int:
        return len(self.stage.waiting)

    @property
    def num_preemptions(self) -> int:
        return self.stage.num_preemptions

    @property
    def has_work(self) -> bool:
        return self.stage.has_work

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self.stage.waiting or seq in self.stage.running

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. Its stop strings stay with the LLM, which reads the text. Raises ValueError as add does."""
        if seq.priority:
            raise ValueError(f"priority={seq.priority} is for the engine: a stage takes requests as they come")
        seq.params = replace(seq.params, stop=())
        self.stage.add(seq)

    def abort(self, seq: Sequence) -> None:
        self.stage.abort(seq)


class StageBlocks:
    """The blocks of a stage. Its prefix cache, if it has one, is its own business: none is shown."""

    prefix_cache = None

    def __init__(self, stage: Stage) -> None:
        self.tables = stage.tables
        self.num_blocks, self.block_size, self.blocks_for = (
            stage.tables.num_blocks, stage.tables.block_size, stage.tables.blocks_for,
        )  # fmt: skip
        self.pool = self

    @property
    def num_free(self) -> int:
        return self.tables.num_free

    def forget_idle(self) -> None:
        """Do nothing: a stage has no call that forgets a cached prefix."""


class AsTheyCome(FirstCome):
    """First come, first served. Refuses what no stage does."""

    def check(self, params: SamplingParams) -> None:
        for name in params.logit_changes():
            raise ValueError(f"{name}={getattr(params, name)!r} is for the engine: a stage leaves logits as they are")
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(params, name)) is not None:
                raise ValueError(f"{name}={value!r} is for the engine: a stage reports none")
