"""Stage 16, overlap: the host prepares and launches the next step while the device computes this one.

What was slow:  host and device take turns. While the host schedules a step, writes its inputs and appends its tokens,
                the device is idle; while the device computes, the host waits for the tokens.
The change:     one step ahead. The host schedules step k+1 as if step k were over, launches it, and only then reads the
                tokens of step k. It does not need to know them: step k+1 takes them on the device. A sequence that
                reaches max_tokens in step k is not scheduled again. That a sequence emits a stop token is not known
                yet: step k+1 computes a surplus token for it, which is dropped.
What it gives:  a step takes as long as the slower of the two, not as long as both together.
Where it loses: where host and device share their cores, nothing is gained. A request that arrives after the next step
                was launched joins the one after it. A surplus token costs a row of a step. And no sequence can be
                preempted while a step is in flight: when the pool runs out, host and device take turns again.

There are two input buffers: the step in flight may still read one of them. A sequence's blocks are freed as soon as it
ends: the device works in order, so it writes to them for the next owner only after it has read them for the last.
Placeholders for tokens not yet known: SGLang (Zheng et al., 2024). Post: "Tuning decoding models".
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
    """Host buffers for one step's inputs and tokens. On a GPU: pinned, with an event that tells when they are free."""

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
    """A launched step: num_new[i] tokens of seqs[i]. Row i of its num_rows tokens is the token that follows seqs[i]."""

    seqs: list[Sequence]
    num_new: list[int]
    num_rows: int
    side: Side
    launched: Launched[None]

    def alive(self) -> list[tuple[int, Sequence, int]]:
        """Row, sequence and number of tokens of the sequences that have not ended since."""
        rows = enumerate(zip(self.seqs, self.num_new, strict=True))
        return [(row, seq, n) for row, (seq, n) in rows if not seq.finish_reason]


class Overlap(PrefixCache):
    """PrefixCache whose step() launches a step and finishes the one before. device: an executor; None for InTurn.

    in_flight: steps launched and not finished, the oldest first; at most one between two calls of step().
    """

    name = "s16_overlap"

    def __init__(self, model: Model, *, device: Device | None = None, **sizes: int | None) -> None:
        super().__init__(model, **sizes)
        self.device = device or InTurn()
        self.in_flight: list[InFlight] = []
        self.sides = Side(self), Side(self)
        self.side = self.sides[0]
        self.copied = None  # the host waits for a side instead
        self.last_tokens = torch.zeros(self.max_num_seqs, dtype=torch.int64, device=model.device)
        self.wishes_on_host = torch.zeros(3, self.max_num_seqs)  # not pinned: a copy has read it when it returns

    @property
    def has_work(self) -> bool:
        return super().has_work or bool(self.in_flight)

    def step(self) -> list[Sequence]:
        """Launch the next step, then finish the one that was in flight; return the sequences that got a token from it.
        After an error nothing is in flight, and the running sequences are recomputed. Raises as stage 15."""
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
        """Inside, the state is as it will be after the step in flight: its tokens are cached, a new token is the
        placeholder -1 - row, and a sequence that ends with it is not running."""
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
        """Raises OutOfBlocks while a step is in flight: a token sampled by it would be sampled a second time."""
        if self.in_flight:
            raise OutOfBlocks("no block is free before the step in flight is over")
        super().preempt(seq)

    def launch(self, seqs: list[Sequence], num_new: list[int]) -> None:
        """Write a step's inputs and launch it."""
        chosen = self.chosen(seqs, num_new)
        token_ids, positions = self.write_inputs(seqs, num_new)
        attend = super().write_tables(seqs, num_new)  # without the upload, which the device does in order
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

    # The device's work, done some time later. It reads one side, and of a sequence only what does not change.

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
        """As in stage 11, by the lengths that the step was written with: the host may have appended a token since."""
        noise = torch.empty_like(probs).exponential_()
        for row, seq, length in zip(noise, seqs, self.lengths.tolist(), strict=False):
            if generator := generator_of(seq, probs.device, length):
                row.exponential_(generator=generator)
        return noise

    def finish(self) -> list[Sequence]:
        """Finish the oldest step: append its tokens to the sequences that have not ended since it was launched."""
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
        """Discard all launched steps, once the device is done with them."""
        for step in self.in_flight:
            step.launched.wait()
            step.side.wait()
        self.in_flight.clear()
        while self.running:
            self.preempt(self.running[-1])
