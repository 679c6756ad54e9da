"""EngineStage: the engine as one more stage, for the contract, the ladder and learners' races."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from roseinfer.models import Attend, Model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..models.weights import prepared_copy
from .config import STEP_TOKENS
from .engine import Engine
from .runner import Runner
from .step import Step


class EngineStage(Stage):
    """The engine's weights, pool, blocks and runner. Its scheduler stays out: a stage is told which sequences run."""

    name = "engine"
    enforce_eager: ClassVar[bool] = False
    make_runner: ClassVar[type[Runner]] = Runner

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        model = prepared_copy(model)  # other stages of a race share the one that was given
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        engine = Engine(
            model,
            make_runner=self.make_runner,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(STEP_TOKENS, max_num_seqs, model.config.max_model_len),  # whole prompts
            enforce_eager=self.enforce_eager,
        )
        self.tables: Any = engine.blocks  # which has what a stage's tables have
        self.runner = engine.runner
        self.is_one_function = engine.runner.whole is not None

    @torch.inference_mode()
    def first_tokens(self, seqs: list[Sequence]) -> list[int]:
        """Run all prompts in as few flat batches as fit, and return each sequence's first token.

        A batch holds as many tokens as a step has room for. Prompts are grouped as in stage 11, which the library does
        not import.
        """
        batches: list[list[Sequence]] = []
        room = 0
        for seq in seqs:
            if len(seq) > room:
                batches.append([])
                room = self.runner.max_num_tokens
            batches[-1].append(seq)
            room -= len(seq)
        with self.claimed(seqs):
            return [token for batch in batches for token in self.runner.run(whole(batch))]

    @torch.inference_mode()
    def next_tokens(self, seqs: list[Sequence]) -> list[int]:
        self._check_decodable(seqs)
        self.tables.reserve({seq.seq_id: len(seq) for seq in seqs})
        tokens = self.runner.run(Step(seqs, [1] * len(seqs)))
        for seq in seqs:
            seq.num_cached_tokens += 1
        return tokens

    def prompt_logits(self, seq: Sequence) -> Tensor:
        return self.runner.compute(self.runner.prepare(whole([seq])))[0][0]

    def inputs(self, seqs: list[Sequence]) -> tuple[Tensor, Tensor]:
        self.batch = self.runner.prepare(Step(seqs, [1] * len(seqs)))
        return self.batch.token_ids, self.batch.positions

    def build(self, seqs: list[Sequence]) -> Attend:
        return self.runner.attend(self.batch)

    def append(self, seqs: list[Sequence], step: Attend) -> None:
        """Do nothing: attention has written K and V."""

    def write_prompt(self, seq: Sequence, layer: int, k: Tensor, v: Tensor) -> None:
        """Do nothing: the step has written the prompt."""


def whole(seqs: list[Sequence]) -> Step:
    """Return a step that computes the whole prompt of each sequence."""
    return Step(seqs, [len(seq) for seq in seqs])
