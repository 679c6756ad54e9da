"""Stage 16, overlap: the next step is planned, written and launched while this one is computed.

What was slow:  host and device take turns. While a step is planned, its inputs are written and its tokens are
                appended, the device has nothing to do; while it computes, the host waits for the tokens.
The change:     one step behind. The host plans step k+1 as if step k were done, launches it, and only then asks for the
                tokens of step k. What it does not know yet it does not need: the device has the last tokens, and takes
                them from there. Whoever reaches max_tokens with step k is foreseen, and left out. Whoever meets a stop
                token is not: step k+1 computes one token too many for it, which is dropped.
What it gives:  a step takes as long as the slower of the two, no longer as long as both.
Where it loses: where host and device are the same cores there is nothing to gain. A request that comes waits for one
                step more: the next one is launched already. A surplus token is a row of a step. And nobody can be
                preempted while a step is in flight: when the pool runs out, host and device take turns again.

Inputs go to one of two buffers, since the step in flight may be reading the other. Blocks are free as soon as a sequence
ends, because a device works in order: who gets them writes to them after all that was launched before has read them.
Tokens that are only known by their place: SGLang (Zheng et al., 2024). Post: "Tuning decoding models".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from roseinfer.blocks import OutOfBlocks
from roseinfer.models import Attend, Model
from roseinfer.overlap import Device, InTurn, Launched
from roseinfer.profiling import span
from roseinfer.sequence import SamplingParams, Sequence

from .s14_token_budget import TokenBudget, read


class Side:
    """What the host writes for one step, and gets back from it. On a GPU: pinned, and an event says when it is free."""

    def __init__(self, stage: TokenBudget) -> None:
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
    """A step that was launched. chosen: those of seqs that get a token, a row each."""

    seqs: list[Sequence]
    num_new: list[int]
    chosen: list[Sequence]
    side: Side
    launched: Launched[None]


@dataclass(frozen=True, slots=True)
class Row:
    """What the choice of a token needs of a sequence, which itself goes on while the device is at work."""

    params: SamplingParams
    num_tokens: int

    def __len__(self) -> int:
        return self.num_tokens


class Overlap(TokenBudget):
    """TokenBudget whose step() launches a step and ends the one before. device: who computes; None for InTurn.

    in_flight: steps launched and not ended, the oldest first: at most one between two calls of step().
    """

    name = "s16_overlap"

    def __init__(self, model: Model, *, device: Device | None = None, **sizes: int | None) -> None:
        super().__init__(model, **sizes)
        self.device = device or InTurn()
        self.in_flight: list[InFlight] = []
        self.sides = Side(self), Side(self)
        self.side = self.sides[0]
        self.copied = None  # who writes inputs waits for a side instead
        self.last_tokens = torch.zeros(self.max_num_seqs, dtype=torch.int64, device=model.device)
        self.wishes_on_host = torch.zeros(3, self.max_num_seqs)  # not pinned: a copy has read it when it returns

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.in_flight)

    def step(self) -> list[Sequence]:
        """Launch the next step, then end the one that was in flight: the sequences that have one token more by that.
        After an error nothing is in flight and no token was appended: all that was launched is computed again."""
        is_in_flight = bool(self.in_flight)
        try:
            with self.ahead():
                self.launch_next()
            return self.finish() if is_in_flight else []
        except BaseException:
            self.drop()
            raise

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, all is as it will be when the step in flight is over. Who gets a token from it has one more, -1 - row,
        and whose last one that is does not run."""
        pending = {row: seq for step in self.in_flight for row, seq in enumerate(step.chosen) if not seq.finish_reason}
        for row, seq in pending.items():
            seq.append(-1 - row)
        running = self.running
        self.running = [seq for seq in running if len(seq) < seq.max_len]
        ending = [seq for seq in running if len(seq) >= seq.max_len]
        try:
            yield
        finally:
            self.running = ending + self.running
            for seq in pending.values():
                seq.token_ids.pop()

    def launch_next(self) -> None:
        """Unless there is nothing to do, or no block free, before the step in flight is over."""
        try:
            seqs, num_new = self.schedule()
        except OutOfBlocks:
            return
        if seqs:
            self.launch(seqs, num_new)

    def preempt(self, seq: Sequence) -> None:
        """Raises OutOfBlocks while a step is in flight: a token that it computes would be drawn a second time."""
        if self.in_flight:
            raise OutOfBlocks("no block is free before the step in flight is over")
        super().preempt(seq)

    def launch(self, seqs: list[Sequence], num_new: list[int]) -> None:
        """Write a step's inputs and hand it to the device. Its tokens count as cached from here on."""
        is_cut = seqs[-1].num_cached_tokens + num_new[-1] < len(seqs[-1])
        chosen = seqs[:-1] if is_cut else seqs
        rows = [Row(seq.params, len(seq)) for seq in chosen]
        inputs = self.write_inputs(seqs, num_new)
        if sum(num_new) == len(chosen):
            bucket = self.buckets[bisect_left(self.buckets, len(seqs))]
            self.write_padding(len(seqs), bucket)
        attend = super().write_tables(seqs, num_new)  # without the upload, which is for the device to do
        is_decode = sum(num_new) == len(chosen)
        forward = partial(self.replayed, rows, bucket) if is_decode else partial(self.mixed, rows, *inputs, attend)
        launched = self.device.launch(partial(self.compute, self.side, sum(num_new), forward), sum(num_new))
        self.in_flight.append(InFlight(seqs, num_new, chosen, self.side, launched))
        for seq, n in zip(seqs, num_new, strict=True):
            seq.num_cached_tokens += n

    def write_inputs(self, seqs: list[Sequence], num_new: list[int]) -> tuple[Tensor, Tensor]:
        self.side = self.sides[self.side is self.sides[0]]  # the other one
        self.side.wait()
        self.host_buffer, self.inputs_on_host = self.side.buffer, self.side.inputs
        return super().write_inputs(seqs, num_new)

    def write_tables(self, seqs: list[Sequence], num_new: list[int]) -> Attend:
        attend = super().write_tables(seqs, num_new)
        self.upload(self.side)
        return attend

    # What the device does, whenever it comes to it: of the host it reads one side, and nothing that a sequence has.

    @torch.inference_mode()
    def compute(self, side: Side, num_tokens: int, forward: Callable[[], Tensor]) -> None:
        self.upload(side)
        ids = self.inputs_on_device["token_ids"][:num_tokens]
        known = self.last_tokens[(-1 - ids).clamp(min=0)].clamp(min=0)  # a -1, of a row with NaN, would be no token
        ids.copy_(torch.where(ids < 0, known, ids))
        tokens = forward()
        self.last_tokens[: len(tokens)] = tokens
        side.tokens.copy_(self.last_tokens, non_blocking=True)
        if side.done:
            side.done.record()

    def upload(self, side: Side) -> None:
        self.device_buffer.copy_(side.buffer, non_blocking=True)
        if side.done:
            side.done.record()

    def replayed(self, rows: list[Row], bucket: int) -> Tensor:
        with span("roseinfer.model.forward"):
            logits, tokens = self.graph_of(bucket).replay()
        is_drawn = any(row.params.temperature > 0 for row in rows)
        return self.choose(logits[: len(rows)], rows) if is_drawn else tokens[: len(rows)]

    def mixed(self, rows: list[Row], token_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        with span("roseinfer.model.forward"):
            hidden = self.model(token_ids, positions, attend)
            last = self.inputs_on_device["query_start"][1 : len(rows) + 1] - 1
            return self.choose(self.model.logits(hidden[last]), rows) if rows else last

    def finish(self) -> list[Sequence]:
        """End the oldest step. Who has ended since it was launched gets nothing of it."""
        step = self.in_flight[0]
        step.launched.result()
        step.side.wait()
        rows = [row for row, seq in enumerate(step.chosen) if not seq.finish_reason]
        tokens = read(step.side.tokens[rows])
        del self.in_flight[0]
        return self.commit([step.chosen[row] for row in rows], tokens)

    def drop(self) -> None:
        """Forget all that was launched, once the device is done with it."""
        for step in self.in_flight:
            step.launched.wait()
            step.side.wait()
            for seq, n in zip(step.seqs, step.num_new, strict=True):
                if self.holds(seq):
                    seq.num_cached_tokens -= n
        self.in_flight.clear()
