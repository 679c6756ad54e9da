"""ParallelRunner: the engine's runner on rank 0, with the forward of each step on all ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from roseinfer.engine.batch import Batch
from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.runner import Runner
from roseinfer.models import Model

from .rank import INPUTS
from .ranks import Ranks


class ParallelRunner(Runner):
    """A Runner over rank 0's part of a model, and of the KV pool.

    The scheduler, the blocks and the choice of tokens exist here alone; a step's inputs go to the other ranks in one
    message, with the blocks to copy first.

    Steps run in turn and operation by operation: settings of Runner that say otherwise are refused before (see
    llm/tensor_parallel.py). Ctrl-C waits for the end of a step: the other ranks would wait for the rest of it.
    """

    def __init__(self, ranks: Ranks, model: Model, blocks: BlockManager, max_num_tokens: int, *settings: Any) -> None:
        self.ranks = ranks
        self.copies: dict[int, int] = {}
        super().__init__(model, blocks, max_num_tokens, *settings)
        ranks.tell("make_pool", blocks.num_blocks, blocks.block_size, max_num_tokens)

    def whole_step(self) -> None:
        """Return None: one function would hold no sums over ranks, so the model runs module by module."""

    def receive(self, batch: Batch, copies: dict[int, int]) -> None:
        self.copies = dict(copies)
        super().receive(batch, copies)

    def hidden(self, batch: Batch) -> Tensor:
        host = self.inputs.hosts[batch.host]
        inputs = {name: host[name][: len(getattr(batch, name))] for name in INPUTS}
        with self.ranks.together("forward", inputs, self.copies):
            return super().hidden(batch)

    def prompt_hidden(self, token_ids: list[int]) -> Tensor:
        with self.ranks.together("prompt_forward", token_ids):
            return super().prompt_hidden(token_ids)
