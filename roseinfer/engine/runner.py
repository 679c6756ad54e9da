"""Runner: one step of the engine, from inputs over one flat forward to tokens."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from roseinfer.kernels.attention import PagedAttention, attention_for
from roseinfer.models import Attend, Model
from roseinfer.overlap import OwnClock
from roseinfer.profiling import span
from roseinfer.sampling import NO_TOKEN
from roseinfer.sequence import Logprob
from roseinfer.stage import PromptAttention

from .batch import Batch, BatchBuffers, make_batch
from .block_manager import BlockManager
from .kv_pool import KVPool
from .logit_changes import LogitChanges, changed_rows, read_last_tokens
from .logprobs import StepLogprobs, prompt_logprobs, step_logprobs
from .sampler import Sampler
from .step import HostMemory, Step, StepTokens, not_finite
from .step_graphs import Compute, StepGraphs
from .whole_step import WholeStep, whole_step_of

if TYPE_CHECKING:
    from .fused_step import FusedStep

Where = tuple[Tensor, Tensor, Tensor, Tensor]  # slot_mapping, query_start, context_lens, block_tables


class Runner:
    """Holds what stays the same from step to step: weights, pool, input buffers, the attention's result, graphs.

    enforce_eager: start every operation by itself: without graphs on a GPU, without a whole_step on a CPU. overlap:
    steps may be launched while the one before is in flight; a CPU, which would compute them in turn, needs a thread for
    it. max_num_rows: how many tokens a step chooses at most, None for one of each sequence.
    """

    def __init__(
        self,
        model: Model,
        blocks: BlockManager,
        max_num_tokens: int,
        enforce_eager: bool = False,
        overlap: bool = False,
        max_num_rows: int | None = None,
    ) -> None:
        c, (max_num_seqs, max_blocks) = model.config, blocks.table.ids.shape
        self.model, self.blocks, self.max_num_tokens = model, blocks, max_num_tokens
        self.pool = KVPool(model, blocks.num_blocks, blocks.block_size)
        self.last: Step | None = None  # the newest step in flight: the one after it finds tokens there
        self.thread = OwnClock() if overlap and model.device.type == "cpu" else None
        max_num_rows = max_num_rows or max_num_seqs
        self.inputs = BatchBuffers(max_num_seqs, max_num_tokens, max_blocks, max_num_rows, model.device, 1 + overlap)
        self.attention = attention_for(model.device, in_one_launch=True)
        self.attended = torch.empty(max_num_tokens, c.num_heads, c.head_dim, dtype=model.dtype, device=model.device)
        self.whole = None if enforce_eager else self.whole_step()
        self.fused = self.fused_step()
        # Free for the tokens of another step: a draft model, which has more in flight, makes more of them.
        self.memories_read = [HostMemory.of(max_num_rows, model.device) for _ in range(1 + overlap)]
        self.sampler = Sampler(max_num_rows, c.vocab_size, model.device, 1 + overlap)
        self.logit_changes = LogitChanges(c.eos_token_ids)
        has_graphs = model.device.type == "cuda" and not enforce_eager
        self.graphs = StepGraphs(self.compute, self.inputs, blocks, model.device) if has_graphs else None

    def whole_step(self) -> WholeStep | None:
        """Return the compiled function that computes a step, None where there is none for the model."""
        return whole_step_of(self.model, self.pool.memory)

    def fused_step(self) -> FusedStep | None:
        """Return what computes a step on a GPU in few launches, None elsewhere and for a model that is not known."""
        if self.model.device.type != "cuda":
            return None
        from .fused_step import FusedStep, has_fused_step  # imports Triton, which takes a second

        return FusedStep(self.model) if has_fused_step(self.model) else None

    def run(self, step: Step) -> list[int]:
        """Compute a step and return the token that follows each of step.chosen.

        Raises ValueError for logits that are not finite. After any error the step can be made again.
        """
        self.launch(step)
        try:
            token_ids = self.wait(step)
            for seq, token in zip(step.chosen, token_ids, strict=True):
                if token == NO_TOKEN:
                    raise ValueError(step.own_error(seq) or not_finite(seq))
            return token_ids
        except BaseException:
            self.drop(step)
            raise

    def launch(self, step: Step) -> None:
        """Hand a step to the device, to be computed after those in flight, and wait for nothing.

        Its tokens are waited for later, or it is dropped.
        """
        pool_blocks, last = self.blocks.pool, self.last
        with span("roseinfer.engine.prepare"):
            # 1. Write the inputs to memory that the device reads.
            batch = make_batch(step, self.blocks, self.inputs, last, self.graphs.sizes if self.graphs else None)
            # 2. Note which rows ask for more than the likeliest token, and the texts that their changes depend on.
            step.takes_likeliest = all(seq.params.takes_likeliest for seq in step.chosen)
            if not step.takes_likeliest:
                step.changed = changed_rows(step.rows, step.draft_of(), self.row_lengths(step, batch))
            # 3. Take the copies of blocks along: no other step makes them.
            step.copies, pool_blocks.copies = pool_blocks.copies, {}
        # 4. Hand it all to the device: a thread, or a GPU, where the step may be a graph; a CPU computes it now.
        compute = self.graphs.run if self.graphs else self.compute
        try:
            if self.thread:
                work = partial(self.work, step, batch, last, compute)
                step.future = self.thread.launch(work, len(batch.token_ids))
            else:
                step.future = Future()
                step.future.set_result(self.work(step, batch, last, compute))
        except BaseException:
            pool_blocks.copy_first(step.copies)  # the step is not in flight: the next one makes them
            raise
        # 5. Count its tokens as in flight: the next step goes on from there.
        self.last = step
        for seq, n in zip(step.seqs, step.num_new, strict=True):
            seq.num_in_flight += n

    def wait(self, step: Step) -> list[int]:
        """Return the token of each of step.rows, NO_TOKEN for logits that are not finite. Raises the step's errors."""
        tokens = step.future.result()
        token_ids = tokens.read()
        self.memories_read.append(tokens.memory)
        if tokens.logprobs:
            tokens.logprobs.report()
        self.last = None if step is self.last else self.last
        for seq, n in zip(step.seqs, step.num_new, strict=True):
            seq.num_in_flight -= n
        return token_ids

    def drop(self, step: Step) -> None:
        """Wait for the device, then discard a step and all later ones, which can then be made again."""
        step.future.exception()
        self.blocks.pool.copy_first(step.copies)
        self.last = None
        for seq in step.seqs:
            seq.num_in_flight = 0

    def prompt_logprobs(self, token_ids: list[int], num_likeliest: int) -> list[dict[int, Logprob] | None]:
        """Return log-probabilities of a prompt's tokens, and of the num_likeliest likeliest tokens in their places.

        The first token has None. The prompt is computed for this alone: the KV pool is neither read nor written. Raises
        ValueError for logits that are not finite.
        """

        @torch.inference_mode()
        def work() -> list[dict[int, Logprob] | None]:
            return prompt_logprobs(self.model, token_ids, self.prompt_hidden(token_ids), num_likeliest)

        return self.thread.launch(work, len(token_ids)).result() if self.thread else work()

    def prepare(self, step: Step) -> Batch:
        """Return a batch that is ready for the method `compute`, without padding rows."""
        batch = make_batch(step, self.blocks, self.inputs, self.last)
        self.receive(batch, self.blocks.pool.copies)
        return batch

    # The device's part of a step

    @torch.inference_mode()  # here, not on a function made in each step: to decorate one takes the host longer
    def work(self, step: Step, batch: Batch, last: Step | None, compute: Compute) -> StepTokens:
        """Compute a step on the device. last: the step before, if it was in flight when this one was launched.

        If the step before has failed, this one may compute from tokens that no step chose. No harm is done: the engine
        drops it, and the step that takes its place writes K and V to the same slots before it reads them.
        """
        # 1. Bring the inputs.
        self.receive(batch, step.copies)
        # 2. Compute logits, and the likeliest tokens. Those of the step before are taken from batch.last_tokens.
        with span("roseinfer.engine.forward"):
            logits, tokens = compute(batch)
        # 3. Choose other tokens where requests ask for that, and start to copy all of them to the host.
        with span("roseinfer.engine.sample"):
            num_rows, logprobs = len(step.rows), None
            tokens = tokens[:num_rows]
            if not step.takes_likeliest:
                fed_by = last if batch.num_fed else None
                tokens, logprobs = self.choose(step, batch, logits[:num_rows], tokens, fed_by)
                batch.last_tokens[:num_rows] = tokens
            return copied_to_host(tokens, logprobs, self.host_memory())

    def receive(self, batch: Batch, copies: dict[int, int]) -> None:
        """Copy blocks, then upload the inputs."""
        if copies:
            self.pool.copy_blocks(copies)
        copies.clear()
        self.inputs.upload(batch.host)

    def choose(
        self, step: Step, batch: Batch, logits: Tensor, tokens: Tensor, fed_by: Step | None
    ) -> tuple[Tensor, StepLogprobs | None]:
        """Return the tokens [R] as each row's request wants them, from logits [R, V] and the likeliest tokens [R].

        fed_by: the step that makes tokens which this one computes, None where all are known.
        """
        seqs, changed = step.rows, step.changed
        asked = any(seq.params.logprobs is not None for seq in seqs)
        own = logits  # the model's own, which log-probabilities are of
        if changed:
            own = logits.clone() if asked else logits
            if fed_by:
                read_last_tokens(changed, fed_by.future.result().read, self.inputs.hosts[batch.host]["sources"])
            logits, tokens = self.logit_changes(logits, tokens, changed)
        tokens = self.sampler(logits, tokens, seqs, self.row_lengths(step, batch))
        return tokens, step_logprobs(own, tokens, seqs) if asked else None

    def host_memory(self) -> HostMemory:
        """Return memory for a step's tokens: what a step before has left, and a new one if all hold unread tokens."""
        if self.memories_read:
            return self.memories_read.pop()
        return HostMemory.of(len(self.inputs.device["sample_rows"]), self.model.device)

    def row_lengths(self, step: Step, batch: Batch) -> np.ndarray:
        """Return how long the text before each chosen token is, [R] or more."""
        host = self.inputs.hosts[batch.host]
        return host["positions"][host["sample_rows"][: len(step.rows)]] + 1

    def compute(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Compute logits [R, V] and greedy token ids [R]: the part of a step that is the same every time.

        So it can be captured: it reads nothing on the host, and when it is run again it gives the same. The token ids
        lie in batch.last_tokens.
        """
        if self.fused:
            return self.fused(batch, self.attend(batch))
        if batch.num_fed:
            take_last_tokens(batch)
        if self.whole:
            return self.whole(batch)
        logits = self.forward(batch)
        largest, tokens = logits.max(dim=-1)  # of equals, the first
        # A row that holds NaN or infinity gets NO_TOKEN: a check on the host would wait for the device.
        chosen = batch.last_tokens[: len(tokens)]
        return logits, chosen.copy_(torch.where(largest.isfinite(), tokens, NO_TOKEN))

    def forward(self, batch: Batch) -> Tensor:
        """Return logits [R, V] of the batch's sample_rows module by module; K and V of all tokens go to the pool."""
        hidden = self.hidden(batch)
        return self.model.logits(hidden if batch.is_decode else hidden[batch.sample_rows])

    def hidden(self, batch: Batch) -> Tensor:
        """Return the hidden states [N, C] of all tokens of the batch."""
        return self.model(batch.token_ids, batch.positions, self.attend(batch))

    def prompt_hidden(self, token_ids: list[int]) -> Tensor:
        """Return the hidden states [N, C] of a prompt alone, without the pool."""
        tokens = torch.tensor(token_ids, device=self.model.device)
        return self.model(tokens, torch.arange(len(token_ids), device=self.model.device), PromptAttention())

    def attend(self, batch: Batch) -> Attend:
        """Return attention over the pool. Its result lies in the same memory in every layer and step."""
        where = batch.slot_mapping, batch.query_start, batch.context_lens, batch.block_tables
        attention = partial(self.attention, max_query_len=batch.max_query_len)
        return partial(paged_attend, attention, self.pool, where, self.attended[: len(batch.token_ids)])


def copied_to_host(tokens: Tensor, logprobs: StepLogprobs | None, memory: HostMemory) -> StepTokens:
    """Start to copy tokens [R] to the host, immediately: the next step writes to their memory."""
    memory.tokens[: len(tokens)].copy_(tokens, non_blocking=True)
    if memory.is_copied:
        memory.is_copied.record()
    return StepTokens(len(tokens), memory, logprobs)


def take_last_tokens(batch: Batch) -> None:
    """Write tokens that the step before has chosen to token_ids, and forget their sources.

    Each is taken once, so a step that is computed again, as captures do, finds the same tokens.
    """
    tokens, sources = batch.token_ids[: batch.num_fed], batch.sources[: batch.num_fed]
    # Below 0: of a row that is not finite, whose sequence the step before is going to end.
    taken = batch.last_tokens[sources.clamp(min=0)].clamp(min=0)
    tokens.copy_(torch.where(sources < 0, tokens, taken))
    sources.fill_(-1)


def paged_attend(
    attention: PagedAttention, pool: KVPool, where: Where, out: Tensor, layer: int, *qkv: Tensor
) -> Tensor:
    """Run one layer's attention over the pool, see kernels/paged_reference.py. out: [N, H, D], filled and returned."""
    return attention(*qkv, *pool.layers[layer], *where, out)
