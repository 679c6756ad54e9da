"""Captured decode against eager decode: the same tokens for every size of batch, and no slot written but its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from roseinfer.engine.as_stage import EngineStage
from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.reference import reference_logits
from roseinfer.sequence import SamplingParams, Sequence

from ..ladder import mixed_prompts
from ..token_check import NEAR_TIE
from .context import Context
from .engines import EagerEngine
from .tokens import BLOCK_SIZE, checked_model

LONGEST_PROMPT = 2 * BLOCK_SIZE + 3


def graph_checks(context: Context) -> Iterator[dict[str, Any]]:
    """One row for each decode step in fp32, of 1 to plan.graph_check_seqs sequences and back to 1: sizes of graphs, and
    those between, which are filled up. The batch grows at its end and shrinks at its front."""
    most = context.plan.graph_check_seqs
    growing, shrinking = [slice(n) for n in range(1, most + 1)], [slice(n, most) for n in range(1, most)]
    for spec in context.plan.graph_check_models:
        pair = Pair(checked_model(spec, context.device, torch.float32), most)
        for rows in growing + shrinking:
            row = {"model": spec, **pair.step(rows)}
            if row["verdict"] != "ok":
                context.fail(f"graph check, {spec}, batch {row['batch_size']}: {row['verdict']}")
            yield row


class Pair:
    """The same sequences in two engines, one that replays graphs and one that does not; unused slots hold NaN.

    Both are given the tokens that eager decode chose, so that one wrong token is one wrong step.
    """

    def __init__(self, model: Model, num_seqs: int) -> None:
        self.model = model
        prompts = mixed_prompts(model, [1 + 5 * i % LONGEST_PROMPT for i in range(num_seqs)])
        params = SamplingParams(max_tokens=2 * num_seqs + 1, ignore_eos=True)
        blocks = sum(-(-(len(prompt) + params.max_tokens) // BLOCK_SIZE) for prompt in prompts)
        self.captured, self.eager = (
            engine(model, num_blocks=blocks, block_size=BLOCK_SIZE, max_num_seqs=num_seqs)
            for engine in (EngineStage, EagerEngine)
        )
        self.pool = self.captured.runner.pool
        for stage in (self.captured, self.eager):
            stage.runner.pool.memory.fill_(float("nan"))
        self.seqs, self.twins = (begin(stage, prompts, params) for stage in (self.captured, self.eager))

    def step(self, rows: slice) -> dict[str, Any]:
        """One token for each of these sequences: batch_size, near_ties, and the verdict: "ok" or "wrong: ..."."""
        seqs, twins = self.seqs[rows], self.twins[rows]
        before = self.pool.memory.clone()
        tokens = self.captured.next_tokens(seqs)
        wrong = self._written_elsewhere(before, seqs)
        expected = self.eager.next_tokens(twins)
        near_ties = 0
        for i, (seq, token, want) in enumerate(zip(seqs, tokens, expected, strict=True)):
            if token == want:
                continue
            if self._gap(seq, token, want) < NEAR_TIE:  # batches of other sizes are summed in other orders
                near_ties += 1
            else:
                wrong.append(f"row {i} got token {token}, eager decode {want}")
        for seq, twin, token in zip(seqs, twins, expected, strict=True):
            seq.append(token)
            twin.append(token)
        verdict = f"wrong: {'; '.join(wrong)}" if wrong else "ok"
        return {"batch_size": len(seqs), "near_ties": near_ties, "verdict": verdict}

    def _written_elsewhere(self, before: torch.Tensor, seqs: list[Sequence]) -> list[str]:
        """What is wrong with the pool: bits that changed outside the new tokens' slots and the dummy block."""
        changed = (self.pool.memory.view(torch.int32) != before.view(torch.int32)).any(5).any(3).any(1).any(0)
        changed[self.pool.dummy_block] = False  # [num_blocks + 1, block_size]
        for seq in seqs:
            block, slot = divmod(seq.num_cached_tokens - 1, BLOCK_SIZE)
            changed[self.captured.tables.of(seq.seq_id)[block], slot] = False
        slots = changed.nonzero().tolist()
        return [f"{len(slots)} slots of others were written, first (block, slot) {tuple(slots[0])}"] if slots else []

    def _gap(self, seq: Sequence, token: int, want: int) -> float:
        logits = reference_logits(self.model, seq.token_ids)[-1]
        return float((logits[want] - logits[token]).abs())
