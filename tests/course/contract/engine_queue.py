"""The engine behind the interface of a stage with a queue, so that the promises of a queue hold it too."""

from __future__ import annotations

from typing import Any

from roseinfer.engine.engine import Engine
from roseinfer.models import Model


class EngineQueue:
    """An Engine under the names that a stage has for its blocks and its policy."""

    name = "engine_queue"
    async_scheduling = False
    tokens_per_step = 1

    def __init__(
        self, model: Model, *, policy: str = "fcfs", max_num_batched_tokens: int | None = None, **sizes: Any
    ) -> None:
        self.engine = Engine(
            model,
            scheduling_policy=policy,
            async_scheduling=self.async_scheduling,
            max_num_batched_tokens=max_num_batched_tokens,
            **sizes,
        )
        self.config, self.tables = model.config, self.engine.blocks
        self.add, self.step, self.abort = self.engine.add, self.engine.step, self.engine.abort

    @property
    def has_work(self) -> bool:
        return self.engine.has_work

    @property
    def num_free_blocks(self) -> int:
        return self.tables.num_free


class OverlappedEngineQueue(EngineQueue):
    """Each step is launched before the one before it is read."""

    name = "engine_queue_overlapped"
    async_scheduling = True
