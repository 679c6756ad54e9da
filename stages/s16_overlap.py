"""Stage 16, overlap: the next step is planned, written and launched while this one is computed.

What was slow:  host and device take turns. While a step is planned, its inputs are written and its tokens appended, the
                device has nothing to do; while the device computes, the host waits for the tokens.
The change:     one step behind. The host plans step k+1 as if step k were over, launches it, and only then asks for the
                tokens of step k. It does not know them yet, and need not: the device has them, and takes them from
                there. A sequence that reaches max_tokens in step k is not scheduled again. One that emits a stop token
                is not known yet: step k+1 computes one token too many for it, which is dropped.
What it gives:  a step takes as long as the slower of the two, no longer as long as both.
Where it loses: where host and device share their cores, there is nothing to gain. A request that arrives when the next
                step is launched already joins the one after it. A surplus token is a row of a step. And no sequence
                can be preempted while a step is in flight: when the pool runs out, host and device take turns again.

Inputs go to one of two buffers: the step in flight may be reading the other. Blocks are free as soon as their sequence
has ended: a device works in order, and writes to them for the next owner after it has read them for the last.
Tokens that are known by their place alone: SGLang (Zheng et al., 2024). Post: "Tuning decoding models".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from roseinfer.blocks import OutOfBlocks
from roseinfer.models import Attend, Model
from roseinfer.overlap import Device, InTurn, Launched
from roseinfer.profiling import span
from roseinfer.sampling import generator_of
from roseinfer.sequence import Sequence

from .s15_prefix_cache import PrefixCache


class Side:
    """What the host writes for one step, and gets back from it. On a GPU: pinned, and an event says when it is free."""

    def __init__(self, stage: PrefixCache) -> None:
        on_gpu = stage.model.device.type == "cuda"
        self.buffer = torch.zeros(stage.device_buffer.shape, dtype=torch.int32, pin_memory=on_gpu)
        views = {name: (x.shape, x.stride(), x.storage_offset()) for name, x in stage.inputs_on_device.items()}
        self.inputs = {name: self.buffer.as_strided(*view).numpy() for name, view in views.items()}
        self.tokens = torch.zeros(stage.max_num_seqs, dtype=torch.int64, pin_memory=on_gpu)
        self.done = torch.cuda.Event() if on_gpu else None

    def wait(self) -> None:
        if self.done:
            self.done.synchronize()


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that was launched: num_new[i] tokens of seqs[i]. Row i of its num_rows tokens is what follows seqs[i]."""

    seqs: list[Sequence]
    num_new: list[int]
    num_rows: int
    side: Side
    launched: Launched[None]

    def alive(self) -> list[tuple[int, Sequence, int]]:
        """Row, sequence and number of tokens of those that have not ended since."""
        rows = enumerate(zip(self.seqs, self.num_new, strict=True))
        return [(row, seq, n) for row, (seq, n) in rows if not seq.finish_reason]


class Overlap(PrefixCache):
    """PrefixCache whose step() launches a step and ends the one before. device: who computes; None for InTurn.

    in_flight: steps launched and not ended, the oldest first; between two calls of step() one at most.
    """

    name = "s16_overlap"

    def __init__(self, model: Model, *, device: Device | None = None, **sizes: int | None) -> None:
        super().__init__(model, **sizes)
        self.device = device or InTurn()
        self.in_flight: list[InFlight] = []
        self.sides = Side(self), Side(self)
        self.side = self.sides[0]
        self.copied = None  # whoever writes inputs waits for a side instead
        self.last_tokens = torch.zeros(self.max_num_seqs, dtype=torch.int64, device=model.device)
        self.wishes_on_host = torch.zeros(3, self.max_num_seqs)  # not pinned: a copy has read it when it returns

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.in_flight)

    def step(self) -> list[Sequence]:
        """Launch the next step, then end the one that was in flight: the sequences that have one token more by that.
        After an error nothing is in flight, and whoever ran is computed again. Raises as the stage before."""
        if not self.has_work:
            raise ValueError("step needs a sequence that waits or runs: add one first")
        is_in_flight = bool(self.in_flight)
        try:
            with self.ahead(), suppress(OutOfBlocks) if is_in_flight else nullcontext():
                self.launch(*self.schedule())
            return self.finish() if is_in_flight else []
        except BaseException:
            self.drop()
            raise

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, all is as it will be when the step in flight is over: its tokens are cached, whoever gets a new one
        has it, as -1 - row, and whoever ends with it does not run."""
        pending = [(step, *entry) for step in self.in_flight for entry in step.alive()]
        for step, row, seq, n in pending:
            if row < step.num_rows:
                seq.append(-1 - row)
            seq.num_cached_tokens += n
        ending = [seq for seq in self.running if len(seq) >= seq.max_len]
        self.running = [seq for seq in self.running if len(seq) < seq.max_len]
        try:
            yield
        finally:
            self.running = ending + self.running
            for _, _, seq, n in pending:
                seq.num_cached_tokens -= n
                if seq.last_token_id < 0:
                    seq.token_ids.pop()

    def preempt(self, seq: Sequence) -> None:
        """Raises OutOfBlocks while a step is in flight: the token that it draws would be drawn again."""
        if self.in_flight:
            raise OutOfBlocks("no block is free before the step in flight is over")
        super().preempt(seq)

    def launch(self, seqs: list[Sequence], num_new: list[int]) -> None:
        """Write a step's inputs, and hand it to the device."""
        chosen = self.chosen(seqs, num_new)
        token_ids, positions = self.write_inputs(seqs, num_new)
        attend = super().write_tables(seqs, num_new)  # without the upload, which the device does in its turn
        if sum(num_new) == len(chosen):
            bucket = self.buckets[bisect_left(self.buckets, len(chosen))]
            self.write_padding(len(chosen), bucket)
            forward = partial(self.replay_graph, chosen, bucket)
        else:
            forward = partial(self.forward, chosen, token_ids, positions, attend)
        copies, self.copies = self.copies, {}
        work = partial(self.compute, self.side, copies, token_ids, forward)
        launched = self.device.launch(work, sum(num_new))
        self.in_flight.append(InFlight(seqs, num_new, len(chosen), self.side, launched))

    def write_inputs(self, seqs: list[Sequence], num_new: list[int]) -> tuple[Tensor, Tensor]:
        self.side = self.sides[self.side is self.sides[0]]  # the other one
        self.side.wait()
        self.host_buffer, self.inputs_on_host = self.side.buffer, self.side.inputs
        return super().write_inputs(seqs, num_new)

    def write_tables(self, seqs: list[Sequence], num_new: list[int]) -> Attend:
        attend = super().write_tables(seqs, num_new)
        self.upload(self.side)
        return attend

    # What the device does, whenever it comes to it. It reads one side, and of a sequence only what stays the same.

    @torch.inference_mode()
    def compute(self, side: Side, copies: dict[int, int], token_ids: Tensor, forward: Callable[[], Tensor]) -> None:
        self.upload(side)
        if copies:
            self.pool[:, :, list(copies)] = self.pool[:, :, list(copies.values())]
        tokens = self.last_tokens[(-1 - token_ids).clamp(min=0)].clamp(min=0)  # -1, of a row with NaN, is no token
        token_ids.copy_(torch.where(token_ids < 0, tokens, token_ids))
        tokens = forward()
        self.last_tokens[: len(tokens)] = tokens
        side.tokens.copy_(self.last_tokens, non_blocking=True)
        if side.done:
            side.done.record()

    def upload(self, side: Side) -> None:
        self.lengths = side.inputs["context_lens"]
        self.device_buffer.copy_(side.buffer, non_blocking=True)
        if side.done:
            side.done.record()

    def replay_graph(self, chosen: list[Sequence], bucket: int) -> Tensor:
        with span("roseinfer.model.forward"):
            logits, tokens = self.graph_of(bucket).replay()
        is_drawn = any(seq.params.temperature > 0 for seq in chosen)
        return self.choose(logits[: len(chosen)], chosen) if is_drawn else tokens[: len(chosen)]

    def noise(self, probs: Tensor, seqs: list[Sequence]) -> Tensor:
        """As before, by the lengths that the step was written with: the host may have appended a token since."""
        noise = torch.empty_like(probs).exponential_()
        for row, seq, length in zip(noise, seqs, self.lengths.tolist(), strict=False):
            if generator := generator_of(seq, probs.device, length):
                row.exponential_(generator=generator)
        return noise

    def finish(self) -> list[Sequence]:
        """End the oldest step: the tokens of sequences that have not ended since it was launched."""
        step = self.in_flight[0]
        step.launched.result()
        step.side.wait()
        alive = step.alive()
        rows = [row for row, _, _ in alive if row < step.num_rows]
        tokens = self.read(step.side.tokens[rows], [step.seqs[row] for row in rows])
        del self.in_flight[0]
        for _, seq, n in alive:
            seq.num_cached_tokens += n
        return self.commit([seq for _, seq, _ in alive], tokens)

    def drop(self) -> None:
        """Forget all that was launched, once the device is done with it."""
        for step in self.in_flight:
            step.launched.wait()
            step.side.wait()
        self.in_flight.clear()
        while self.running:
            self.preempt(self.running[-1])
