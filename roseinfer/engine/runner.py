"""Runner: one step of the engine. Prepare its inputs, one flat forward, choose the tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from roseinfer.kernels.attention import attention_for
from roseinfer.models import Attend, Model
from roseinfer.overlap import Device, InTurn, Launched, OwnClock
from roseinfer.profiling import span
from roseinfer.sequence import SamplingParams, Sequence

from .batch import Batch, BatchBuffers, make_batch
from .block_manager import BlockManager
from .decode_graphs import DecodeGraphs
from .interrupts import interruptible
from .kv_pool import KVPool
from .logprobs import StepLogprobs, step_logprobs
from .sampler import Sampler, greedy_tokens
from .scheduler import NO_TOKEN, NOTHING, Ahead, not_finite


@dataclass(slots=True, eq=False)
class InFlight:
    """A step that was launched. ahead: how many tokens of each sequence it computes, by seq_id, in the order of its
    rows. chosen: the sequences that it gives a token, all but a last one whose prompt is cut. copies: blocks that it
    still has to copy first."""

    seqs: list[Sequence]
    num_new: list[int]
    ahead: Ahead
    chosen: list[Sequence]
    copies: dict[int, int]
    work: Launched[Computed]

    def token_ids(self) -> list[int]:
        """The token that follows each of `chosen`, NO_TOKEN for logits that are not finite. Waits for the device, and
        raises what the step itself raised."""
        computed = self.work.result()
        if computed.is_copied:
            computed.is_copied.synchronize()
        if computed.logprobs:
            computed.logprobs.report()
        return computed.on_host.tolist()


@dataclass(frozen=True, slots=True)
class Computed:
    """tokens [B] on the device, where the step after this one finds them; the same on the host, once is_copied has
    been waited for (None: at once); log-probabilities where somebody asked."""

    tokens: Tensor
    on_host: Tensor
    is_copied: torch.cuda.Event | None
    logprobs: StepLogprobs | None


class Runner:
    """Holds what stays the same from step to step: weights, pool, input buffers, the attention's result, and graphs of
    the decode step. enforce_eager: without graphs, every step started operation by operation. overlap: steps may be
    launched while the one before is in flight; on a CPU, which would compute them in turn, by a thread."""

    def __init__(
        self, model: Model, pool: KVPool, blocks: BlockManager, max_num_tokens: int, enforce_eager: bool = False,
        overlap: bool = False,
    ) -> None:  # fmt: skip
        c, (max_num_seqs, max_blocks) = model.config, blocks.table.shape
        self.model, self.pool, self.blocks, self.max_num_tokens = model, pool, blocks, max_num_tokens
        self.device: Device = OwnClock() if overlap and model.device.type == "cpu" else InTurn()
        self.inputs = BatchBuffers(max_num_seqs, max_num_tokens, max_blocks, model.device, num_hosts=1 + overlap)
        self.attention = attention_for(model.device)
        self.attended = torch.empty(max_num_tokens, c.num_heads, c.head_dim, dtype=model.dtype, device=model.device)
        self.sampler = Sampler(max_num_seqs, c.vocab_size, model.device)
        self.graphs = None if enforce_eager else DecodeGraphs(self.step, self.inputs, max_num_seqs, model.device)

    def run(self, seqs: list[Sequence], num_new: list[int]) -> list[int]:
        """One step: the token that follows each sequence. A last one whose prompt is cut gets none.

        Raises ValueError for logits that are not finite. After any error the step can be made again.
        """
        step = self.launch(seqs, num_new)
        try:
            token_ids = step.token_ids()
            for seq, token in zip(step.chosen, token_ids, strict=True):
                if token == NO_TOKEN:
                    raise ValueError(not_finite(seq))
            return token_ids
        except BaseException:
            self.drop(step)
            raise

    def launch(self, seqs: list[Sequence], num_new: list[int], before: InFlight | None = None) -> InFlight:
        """Hand a step to the device, to be computed after the one `before` it, if one is in flight; nothing is waited
        for. Its tokens are read later, or it is dropped."""
        ahead = before.ahead if before else NOTHING
        with span("roseinfer.engine.prepare"):
            graphs = self.graphs if max(num_new) == 1 else None
            batch = make_batch(
                seqs, num_new, self.blocks, self.inputs, graphs.size_for(len(seqs)) if graphs else len(seqs), ahead
            )
            last = seqs[-1]
            is_cut = last.num_cached_tokens + ahead.get(last.seq_id, 0) + num_new[-1] < len(last)
            chosen = seqs[:-1] if is_cut else seqs
            copies = self.blocks.take_copies()
            computes = {seq.seq_id: n for seq, n in zip(seqs, num_new, strict=True)}

        @torch.inference_mode()
        def work() -> Computed:
            self.receive(batch, copies, before.work.result().tokens if batch.num_fed else None)
            with span("roseinfer.engine.forward"):
                logits, tokens = (graphs.run if graphs else self.step)(batch)
            with span("roseinfer.engine.sample"):
                return self.choose(logits[: len(chosen)], tokens[: len(chosen)], chosen, batch)

        return InFlight(seqs, num_new, computes, chosen, copies, self.device.launch(work, len(batch.token_ids)))

    def drop(self, step: InFlight) -> None:
        """Forget a step, once the device is done with it: it can be made again. Of several, the last one first."""
        step.work.wait()
        self.blocks.copy_first(step.copies)

    def warm_up(self) -> None:
        """Have made what only first steps make, so that no request waits for it: kernels compiled, libraries set up,
        and on a GPU the graph of every size captured. Needs a free block, and leaves it free."""
        longest = min(self.pool.block_size, self.model.config.max_model_len, self.max_num_tokens)
        prompt = Sequence([0] * min(8, longest), SamplingParams(temperature=0))
        self.blocks.reserve({prompt.seq_id: len(prompt)})
        self.run([prompt], [len(prompt)])
        self.blocks.free(prompt.seq_id)
        if self.graphs:
            self.graphs.warm_up(self.blocks)

    def prepare(self, seqs: list[Sequence], num_new: list[int], num_rows: int | None = None) -> Batch:
        """A batch that is ready for `step`. num_rows: of a decode batch that is filled up; None for none but the
        sequences'."""
        batch = make_batch(seqs, num_new, self.blocks, self.inputs, num_rows or len(seqs))
        self.receive(batch, self.blocks.copies)
        return batch

    # The device's part of a step

    def receive(self, batch: Batch, copies: dict[int, int], tokens: Tensor | None = None) -> None:
        """First blocks are copied, then the inputs come; tokens: of the step before, where the batch needs them."""
        self.pool.copy_blocks(copies)
        copies.clear()
        self.inputs.upload(batch.host)
        if batch.num_fed:
            fed, sources = batch.token_ids[: batch.num_fed], batch.sources[: batch.num_fed]
            # Below 0: of a row that is not finite, whose sequence the step before is going to end.
            fed.copy_(torch.where(sources < 0, fed, tokens[sources.clamp(min=0)].clamp(min=0)))

    def choose(self, logits: Tensor, tokens: Tensor, seqs: list[Sequence], batch: Batch) -> Computed:
        tokens = self.sampler(logits, tokens, seqs, self.inputs.hosts[batch.host]["context_lens"])
        logprobs = step_logprobs(logits, tokens, seqs)
        # At once, and behind nothing else: the next replay of a graph writes to the memory that `tokens` lies in.
        on_host = torch.empty(len(seqs), dtype=tokens.dtype, pin_memory=tokens.is_cuda)
        on_host.copy_(tokens, non_blocking=True)
        is_copied = torch.cuda.Event() if tokens.is_cuda else None
        if is_copied:
            is_copied.record()
        return Computed(tokens, on_host, is_copied, logprobs)

    def step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits [B, V] and greedy token ids [B]: what of a step is the same every time, and so can be captured. It
        reads nothing on the host and keeps nothing."""
        logits = self.forward(batch)
        return logits, greedy_tokens(logits)

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B, V] of the last token of each sequence; K and V of all tokens are written to the pool."""
        with interruptible():  # it may take long, and keeps nothing
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
