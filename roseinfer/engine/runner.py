"""Runner: one step of the engine. Prepare its inputs, one flat forward, choose the tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer.kernels.attention import attention_for
from roseinfer.models import Attend, Model
from roseinfer.profiling import span
from roseinfer.sequence import Sequence

from .batch import Batch, BatchBuffers, make_batch
from .block_manager import BlockManager
from .kv_pool import KVPool
from .logprobs import step_logprobs
from .sampler import Sampler, read_tokens


class Runner:
    """Holds what stays the same from step to step: weights, pool, input buffers, the attention's result."""

    def __init__(self, model: Model, pool: KVPool, blocks: BlockManager, max_num_tokens: int) -> None:
        c, (max_num_seqs, max_blocks) = model.config, blocks.table.shape
        self.model, self.pool, self.blocks, self.max_num_tokens = model, pool, blocks, max_num_tokens
        self.inputs = BatchBuffers(max_num_seqs, max_num_tokens, max_blocks, model.device)
        self.attention = attention_for(model.device)
        self.attended = torch.empty(max_num_tokens, c.num_heads, c.head_dim, dtype=model.dtype, device=model.device)
        self.sampler = Sampler(max_num_seqs, c.vocab_size, model.device)

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        """One step: the token that follows each sequence. A last one whose prompt is cut gets none. Only reading the
        tokens waits for the device.

        Raises ValueError for logits that are not finite. After any error the step can be made again.
        """
        with span("roseinfer.engine.prepare"):
            batch = self.prepare(seqs, num_new)
        with span("roseinfer.engine.forward"):
            logits = self.forward(batch)
        if seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1]):
            seqs, logits = seqs[:-1], logits[:-1]
        with span("roseinfer.engine.sample"):
            tokens = self.sampler(logits, seqs)
            logprobs = step_logprobs(logits, tokens, seqs)
        token_ids = read_tokens(tokens, seqs)
        if logprobs:
            logprobs.report()
        return token_ids

    def prepare(self, seqs: list[Sequence], num_new: list[int]) -> Batch:
        self.pool.copy_blocks(self.blocks.copies)
        self.blocks.copies.clear()
        return make_batch(seqs, num_new, self.blocks, self.inputs)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B, V] of the last token of each sequence; K and V of all tokens are written to the pool."""
        hidden = self.model(batch.token_ids, batch.positions, self.attend(batch))
        return self.model.logits(hidden if batch.is_decode else hidden[batch.sample_rows])

    def attend(self, batch: Batch) -> Attend:
        """Attention over the pool, whose result lies in the same memory in every layer and step."""
        out = self.attended[: len(batch.token_ids)]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.attention(
                q, k, v, *self.pool.layers[layer],
                batch.slot_mapping, batch.query_start, batch.context_lens, batch.block_tables, out,
            )  # fmt: skip

        return attend
