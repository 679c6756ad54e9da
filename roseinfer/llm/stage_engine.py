"""StageEngine: a stage with a queue of its own in the place of the engine, for an LLM and its server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, cast

from roseinfer.engine.config import EngineConfig
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import EngineMetrics, SequenceTimes
from roseinfer.engine.step import Step
from roseinfer.models import Model
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


class StageEngine:
    """Lets a stage make the steps of an LLM, and decide on its own what a step computes.

    It has what an LLM and its server ask of an Engine; the stage is the scheduler, whose numbers it passes on. Tokens
    are greedy or drawn, by temperature, top_k, top_p and seed. What else a request may ask of the engine is refused by
    name: changed logits, log-probabilities, priorities. How many tokens a step computed only the stage knows: records
    of steps have 0.

    stage: a class that check_stage accepts. config: the sizes that it is made with. Raises ValueError as the stage
    does, and for a stage that lacks one of STATE.
    """

    def __init__(self, stage: type[Stage], model: Model, config: EngineConfig) -> None:
        names = ("num_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")
        sizes = {name: size for name in names if (size := getattr(config, name)) is not None}
        self.stage: Any = stage(model, **sizes)
        if missing := [name for name in STATE if not hasattr(self.stage, name)]:
            raise ValueError(f"stage must have {', '.join(STATE)}, {stage.__name__} has no {missing[0]}")
        self.model, self.config, self.blocks = model, config, self.stage.tables
        self.scheduler = self
        self.metrics = EngineMetrics(cast(Any, self))  # it has what they read of a scheduler

    def warm_up(self) -> None:
        """Do nothing: a stage makes what it needs with its first steps."""

    @property
    def running(self) -> Collection[Sequence]:
        return self.stage.running

    @property
    def waiting(self) -> Collection[Sequence]:
        return self.stage.waiting

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def num_preemptions(self) -> int:
        return self.stage.num_preemptions

    @property
    def has_work(self) -> bool:
        return self.stage.has_work

    def __contains__(self, seq: Sequence) -> bool:
        return seq in self.waiting or seq in self.running

    def check(self, seq: Sequence) -> None:
        """Raise ValueError for a request that asks for what no stage does."""
        for name in seq.params.logit_changes():
            value = getattr(seq.params, name)
            raise ValueError(f"{name}={value!r} is for the engine: a stage leaves logits as they are")
        for name in ("logprobs", "prompt_logprobs"):
            if (value := getattr(seq.params, name)) is not None:
                raise ValueError(f"{name}={value!r} is for the engine: a stage reports none")
        if seq.priority:
            raise ValueError(f"priority={seq.priority} is for the engine: a stage takes requests as they come")

    def admit(self, seq: Sequence, arrival: float | None = None) -> SequenceTimes:
        """Add a sequence, whose stop strings stay with the LLM, which reads the text. arrival: see Engine.add."""
        seq.params = replace(seq.params, stop=())
        self.stage.add(seq)
        return self.metrics.begin(seq, arrival)

    def step(self) -> list[Sequence]:
        """Run one step of the stage, and return the sequences that have one token more. Raises as the stage does."""
        before = {seq: len(seq) for seq in (*self.running, *self.waiting)}
        step = Step([], [])
        step.scheduled = self.metrics.clock()
        self.metrics.before_launch(step)
        done = self.stage.step()
        step.ended = self.metrics.clock()
        step.seqs = [*self.running, *(seq for seq in done if seq.finish_reason)]
        step.num_given = [len(seq) - before[seq] for seq in step.seqs]
        self.metrics.after_tokens(step, done)
        return done

    def abort(self, seq: Sequence) -> None:
        """End a sequence now and give its blocks back. Raises as the stage does."""
        self.stage.abort(seq)
        self.metrics.end(seq)

    def reset_prefix_cache(self) -> NoReturn:
        """Raise ValueError: a stage has no call that forgets what it has cached."""
        raise ValueError("reset_prefix_cache is for the engine: a stage has no call that forgets a cached prefix")


AnyEngine = Engine | StageEngine  # that makes the steps of an LLM
