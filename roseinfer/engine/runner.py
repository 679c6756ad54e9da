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
from .decode_graphs import DecodeGraphs
from .kv_pool import KVPool
from .logprobs import step_logprobs
from .sampler import Sampler, greedy_tokens, read_tokens


class Runner:
    """Holds what stays the same from step to step: weights, pool, input buffers, the attention's result, and graphs of
    the decode step. enforce_eager: without graphs, every step started operation by operation."""

    def __init__(
        self, model: Model, pool: KVPool, blocks: BlockManager, max_num_tokens: int, enforce_eager: bool = False
    ) -> None:
        c, (max_num_seqs, max_blocks) = model.config, blocks.table.shape
        self.model, self.pool, self.blocks, self.max_num_tokens = model, pool, blocks, max_num_tokens
        self.inputs = BatchBuffers(max_num_seqs, max_num_tokens, max_blocks, model.device)
        self.attention = attention_for(model.device)
        self.attended = torch.empty(max_num_tokens, c.num_heads, c.head_dim, dtype=model.dtype, device=model.device)
        self.sampler = Sampler(max_num_seqs, c.vocab_size, model.device)
        self.graphs = None if enforce_eager else DecodeGraphs(self.step, self.inputs, max_num_seqs, model.device)

    @torch.inference_mode()
    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        """One step: the token that follows each sequence. A last one whose prompt is cut gets none. Only reading the
        tokens waits for the device.

        Raises ValueError for logits that are not finite. After any error the step can be made again.
        """
        with span("roseinfer.engine.prepare"):
            graphs = self.graphs if max(num_new) == 1 else None
            batch = self.prepare(seqs, num_new, graphs and graphs.size_for(len(seqs)))
        with span("roseinfer.engine.forward"):
            logits, tokens = (graphs.run if graphs else self.step)(batch)
        if seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1]):
            seqs = seqs[:-1]
        logits, tokens = logits[: len(seqs)], tokens[: len(seqs)]
        with span("roseinfer.engine.sample"):
            tokens = self.sampler(logits, tokens, seqs)
            logprobs = step_logprobs(logits, tokens, seqs)
        token_ids = read_tokens(tokens, seqs)
        if logprobs:
            logprobs.report()
        return token_ids

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Have made what only first steps make, so that no request waits for it: kernels compiled, libraries set up,
        and on a GPU the graph of every size captured. Needs a free block, and leaves it free."""
        longest = min(self.pool.block_size, self.model.config.max_model_len, self.max_num_tokens)
        prompt = Sequence([0] * min(8, longest))
        self.blocks.reserve({prompt.seq_id: len(prompt)})
        self.step(self.prepare([prompt], [len(prompt)]))
        self.blocks.free(prompt.seq_id)
        if self.graphs:
            self.graphs.warm_up(self.blocks)

    def prepare(self, seqs: list[Sequence], num_new: list[int], num_rows: int | None = None) -> Batch:
        """num_rows: of a decode batch that is filled up; None for none but the sequences'. Blocks that are to be copied
        are copied first."""
        self.pool.copy_blocks(self.blocks.copies)
        self.blocks.copies.clear()
        return make_batch(seqs, num_new, self.blocks, self.inputs, num_rows or len(seqs))

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and greedy token ids [B]: what of a step is the same every time, and so can be captured. It
        reads nothing on the host and keeps nothing."""
        logits = self.forward(batch)
        return logits, greedy_tokens(logits)

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
