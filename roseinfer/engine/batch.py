"""Batch: what one step computes. BatchBuffers, InputBuffers: its inputs, at the same addresses on every step."""

from __future__ import annotations

from bisect import bisect_left
from collections import abc
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from roseinfer.sequence import Sequence

from .block_manager import BlockManager
from .step import Step

FEW_ROWS = 16  # the rows of a tile; a product of at most so many also computes norm, bias, activation and residual
Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


class StepShape(NamedTuple):
    """The sizes of a step: on a GPU they decide what is launched, whatever the values are.

    max_query_len: the most tokens that one sequence has in the step. num_rows: how many tokens the step chooses, those
    after a cut prompt and after drafts included.
    """

    max_query_len: int
    num_tokens: int
    num_seqs: int
    num_rows: int

    @classmethod
    def of(cls, step: Step) -> StepShape:
        num_seqs = len(step.seqs)
        return cls(max(step.num_new), sum(step.num_new), num_seqs, num_seqs + sum(map(len, step.drafts)))

    @property
    def is_decode(self) -> bool:
        """Whether the step computes one new token of each sequence."""
        return self.max_query_len == 1

    def has_room_for(self, step: StepShape) -> bool:
        """Whether `fill_up` can bring a step to this shape. Padding needs a sequence's place, except for decodes."""
        is_large_enough = self.max_query_len >= step.max_query_len and self.num_tokens >= step.num_tokens
        num_seqs = step.num_seqs + (0 if self.is_decode else 1)
        return is_large_enough and self.num_seqs >= num_seqs and self.num_rows >= step.num_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs of a step on the device: B sequences, and N tokens of theirs, one sequence after another.

    Sequence i has the tokens from query_start[i] to query_start[i + 1]. Prompts, chunks of them and single new tokens
    may stand beside each other. The last token of each sequence is where its next one is chosen; with drafts, also the
    tokens before them.

    token_ids [N], positions [N] int64. slot_mapping [N], query_start [B + 1], context_lens [B], block_tables [B, W]
    int32 as kernels/paged_reference.py has them. sample_rows [R] int64: rows of the hidden states to choose tokens
    from, one of each sequence, and one more for each draft. After the real sequences there may be padding: see
    `fill_up`.
    last_tokens [R or more] int64: what the step before has chosen, to be replaced by what this one chooses. sources [B]
    int64: for each of the first num_fed tokens, the row of last_tokens that it is taken from, or -1 where token_ids has
    it; -1 from there on. max_query_len: the most tokens that one of its sequences may have, padding apart. host: which
    of the buffers' host memories it was written to.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    sample_rows: Tensor
    sources: Tensor
    last_tokens: Tensor
    num_fed: int = 0
    max_query_len: int = 1
    host: int = 0

    @property
    def shape(self) -> StepShape:
        return StepShape(self.max_query_len, len(self.token_ids), len(self.context_lens), len(self.sample_rows))

    @property
    def is_decode(self) -> bool:
        """Whether the batch computes one new token of each sequence."""
        return self.max_query_len == 1


def padded_bytes(shapes: Shapes) -> list[int]:
    """Return the bytes of each array in InputBuffers; each begins at a multiple of 64 bytes."""
    return [-(-prod(shape) * dtype.itemsize // 64) * 64 for shape, dtype in shapes.values()]


class InputBuffers:
    """Named arrays in one piece of memory, on the host for writing and on the device for reading.

    One piece, so that all inputs of a step go to a GPU in one copy; the same piece on every step, because a captured
    graph reads the addresses that it was captured with. On a CPU the two are one memory, and nothing is copied.
    num_hosts: memories on the host, to be written in turn. With two, the next step's inputs are written while the last
    ones wait for the device to be ready for them; so then a CPU has memory of the device, too.
    """

    def __init__(self, shapes: Shapes, device: torch.device, num_hosts: int = 1) -> None:
        ends = np.cumsum(padded_bytes(shapes))
        on_gpu = device.type == "cuda"
        self._memories = [torch.zeros(int(ends[-1]), dtype=torch.uint8, pin_memory=on_gpu) for _ in range(num_hosts)]
        self._is_apart = on_gpu or num_hosts > 1
        self._device = torch.zeros_like(self._memories[0], device=device) if self._is_apart else self._memories[0]
        self._copied = [torch.cuda.Event() for _ in self._memories] if on_gpu else None
        starts = dict(zip(shapes, [0, *ends[:-1].tolist()], strict=True))
        cuts = {
            name: slice(starts[name], starts[name] + prod(shape) * dtype.itemsize)
            for name, (shape, dtype) in shapes.items()
        }
        self.turn = 0  # the memory on the host that is written to
        self.hosts: list[dict[str, np.ndarray]] = [
            {name: memory[cut].view(shapes[name][1]).view(shapes[name][0]).numpy() for name, cut in cuts.items()}
            for memory in self._memories
        ]
        self.device: dict[str, Tensor] = {
            name: self._device[cut].view(shapes[name][1]).view(shapes[name][0]) for name, cut in cuts.items()
        }

    @property
    def host(self) -> dict[str, np.ndarray]:
        return self.hosts[self.turn]

    def begin(self) -> None:
        """Take the next memory on the host, once the last copy from it is done: then it may be written again."""
        self.turn = (self.turn + 1) % len(self._memories)
        if self._copied:
            self._copied[self.turn].synchronize()

    def upload(self, turn: int | None = None) -> None:
        """Copy what was written to host memory number `turn` to the device; None: the memory of this turn."""
        turn = self.turn if turn is None else turn
        if self._is_apart:
            self._device.copy_(self._memories[turn], non_blocking=True)
        if self._copied:
            self._copied[turn].record()


def batch_shapes(max_num_seqs: int, max_num_tokens: int, max_blocks: int, max_num_rows: int) -> Shapes:
    """Return the shapes of the arrays in BatchBuffers. There is room for one more sequence, which is padding."""
    num_seqs = max_num_seqs + 1
    return {
        "token_ids": ((max_num_tokens,), torch.int64),
        "positions": ((max_num_tokens,), torch.int64),
        "slot_mapping": ((max_num_tokens,), torch.int32),
        "query_start": ((num_seqs + 1,), torch.int32),
        "context_lens": ((num_seqs,), torch.int32),
        "block_tables": ((num_seqs, max_blocks), torch.int32),
        "sample_rows": ((max_num_rows,), torch.int64),
        "sources": ((num_seqs,), torch.int64),
    }


class BatchBuffers(InputBuffers):
    """The inputs of batches of up to max_num_seqs sequences, max_num_tokens tokens and max_num_rows rows of logits.

    last_tokens [max_num_rows]: what the last step has chosen. It stays on the device, where the next step finds it.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_num_tokens: int,
        max_blocks: int,
        max_num_rows: int,
        device: torch.device,
        num_hosts: int = 1,
    ) -> None:
        super().__init__(batch_shapes(max_num_seqs, max_num_tokens, max_blocks, max_num_rows), device, num_hosts)
        self.last_tokens = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._kept: dict[tuple[int, StepShape], tuple[dict[str, np.ndarray], dict[str, Tensor]]] = {}

    def views(self, shape: StepShape, keep: bool) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
        """Return the front of each array on host and device, as much of it as a batch fills. last_tokens come whole.

        keep: whether the shape comes again. Cutting views in each decode step takes longer than writing them.
        """
        if views := self._kept.get((self.turn, shape)):
            return views
        lengths = dict.fromkeys(("token_ids", "positions", "slot_mapping"), shape.num_tokens)
        lengths |= {"query_start": shape.num_seqs + 1, "sample_rows": shape.num_rows}
        cuts = {name: slice(lengths.get(name, shape.num_seqs)) for name in self.host}
        views = (
            {name: x[cuts[name]] for name, x in self.host.items()},
            {name: x[cuts[name]] for name, x in self.device.items()} | {"last_tokens": self.last_tokens},
        )
        if keep:
            self._kept[self.turn, shape] = views
        return views


def make_batch(
    step: Step, blocks: BlockManager, buffers: BatchBuffers, last: Step | None, sizes: list[StepShape] | None = None
) -> Batch:
    """Write the next tokens of a step's sequences to the buffers. Every sequence holds blocks for them.

    last: the newest step in flight, which makes tokens that this one computes; sequences that decode come first in
    both. sizes: sorted shapes; the step is filled up to the first that has room for it. None: no padding.
    """
    buffers.begin()
    seqs, shape = step.seqs, StepShape.of(step)
    host, device = buffers.views(shape, keep=shape.is_decode)
    launched = [seq.num_cached_tokens + seq.num_in_flight for seq in seqs]
    host["sources"][:] = -1
    num_fed = write_fed(host, seqs, launched, last) if last else 0
    held = [blocks.table.held[seq.seq_id] for seq in seqs]
    # "clip": rows are in range, and without the check NumPy writes to `out` without a buffer between.
    np.take(blocks.table.ids, [one.row for one in held], axis=0, out=host["block_tables"], mode="clip")
    if shape.is_decode:
        write_decode(host, seqs, launched, [one.blocks for one in held], blocks.block_size, num_fed)
    else:
        write_mixed(host, step, launched, blocks.block_size, num_fed)
    size = size_for(shape, sizes) if sizes else shape
    if size != shape:
        device = fill_up(buffers, shape, size, blocks)
    return Batch(**device, num_fed=num_fed, max_query_len=size.max_query_len, host=buffers.turn)


def write_mixed(host: dict[str, np.ndarray], step: Step, launched: list[int], size: int, num_fed: int) -> None:
    """Write the inputs of any step. What has one number for each token is computed by NumPy, the rest with lists."""
    first, new = np.array(launched), np.array(step.num_new)
    starts = host["query_start"]
    starts[0] = 0
    np.cumsum(new, out=starts[1:])
    positions = np.arange(starts[-1]) + np.repeat(first - starts[:-1], new)
    known = zip(step.seqs[num_fed:], launched[num_fed:], step.num_new[num_fed:], strict=True)
    texts = [seq.token_ids[at : at + n] for seq, at, n in known]
    for text, draft in zip(texts, step.drafts, strict=True) if step.drafts else ():
        text += draft
    host["token_ids"][num_fed:] = [*chain.from_iterable(texts)]
    host["positions"][:] = positions
    rows = np.repeat(np.arange(len(new)), new)
    host["slot_mapping"][:] = host["block_tables"][rows, positions // size] * size + positions % size
    host["context_lens"][:] = first + new
    host["sample_rows"][:] = rows_of(step.drafts, starts[1:].tolist()) if step.drafts else starts[1:] - 1


def rows_of(drafts: abc.Sequence[list[int]], ends: list[int]) -> list[int]:
    """Return the rows that tokens are chosen from: the last one of each sequence, and those before it with a draft."""
    return [row for draft, end in zip(drafts, ends, strict=True) for row in range(end - 1 - len(draft), end)]


def write_decode(
    host: dict[str, np.ndarray],
    seqs: list[Sequence],
    launched: list[int],
    block_ids: list[list[int]],
    size: int,
    num_fed: int,
) -> None:
    """Write the inputs of a step that computes one token of each sequence, faster than write_mixed does.

    It takes half of the time for up to 8 sequences and two thirds for 64: a NumPy operation on so few numbers costs
    more than a line of Python. This runs in every decode step.
    """
    host["token_ids"][num_fed:] = [
        seq.token_ids[at] for seq, at in zip(seqs[num_fed:], launched[num_fed:], strict=True)
    ]
    host["positions"][:] = launched
    host["slot_mapping"][:] = [ids[at // size] * size + at % size for ids, at in zip(block_ids, launched, strict=True)]
    host["query_start"][:] = np.arange(len(seqs) + 1)
    host["sample_rows"][:] = np.arange(len(seqs))
    np.add(host["positions"], 1, out=host["context_lens"], casting="same_kind")


def write_fed(host: dict[str, np.ndarray], seqs: list[Sequence], launched: list[int], last: Step) -> int:
    """Write the rows from the first one to the last whose token is not known on the host, and return how many.

    A row gets the row of the last step that makes its token, or -1 and the token itself.
    """
    is_fed = [at >= len(seq.token_ids) for seq, at in zip(seqs, launched, strict=True)]
    num_fed = len(is_fed) - is_fed[::-1].index(True) if any(is_fed) else 0
    row_of = {seq.seq_id: row for row, seq in enumerate(last.seqs)}
    fed = list(zip(seqs, launched, is_fed, strict=True))[:num_fed]
    host["sources"][:num_fed] = [row_of[seq.seq_id] if is_fed else -1 for seq, _, is_fed in fed]
    host["token_ids"][:num_fed] = [0 if is_fed else seq.token_ids[at] for seq, at, is_fed in fed]
    return num_fed


def size_for(step: StepShape, sizes: list[StepShape]) -> StepShape:
    """Return the first of these sorted shapes that has room for a step, and the step's own shape where none has."""
    first = bisect_left(sizes, step[:2])  # those before have too few tokens, for the longest sequence or for all
    return next((size for size in sizes[first:] if size.has_room_for(step)), step)


def fill_up(buffers: BatchBuffers, used: StepShape, size: StepShape, blocks: BlockManager) -> dict[str, Tensor]:
    """Write padding after the `used` part of the inputs, up to a shape that has room for it; return all of them.

    Padding tokens go to the dummy block. In a decode batch each is a sequence. In any other batch they are one
    sequence, of which nothing is cached, and the sequences after it are empty.
    """
    host, device = buffers.views(size, keep=True)
    _, num_tokens, num_seqs, num_rows = used
    num_padding, dummy_block = size.num_tokens - num_tokens, blocks.num_blocks
    host["token_ids"][num_tokens:] = 0
    host["positions"][num_tokens:] = 0  # a place in the text that every model has
    host["slot_mapping"][num_tokens:] = dummy_block * blocks.block_size + np.arange(num_padding) % blocks.block_size
    if size.is_decode:
        host["query_start"][num_seqs + 1 :] = np.arange(num_seqs + 1, size.num_seqs + 1)
        host["context_lens"][num_seqs:] = 1
    else:
        host["query_start"][num_seqs + 1 :] = size.num_tokens
        host["context_lens"][num_seqs:] = 0
        host["context_lens"][num_seqs] = num_padding
    host["block_tables"][num_seqs:] = dummy_block
    host["sample_rows"][num_rows:] = 0
    host["sources"][num_seqs:] = -1
    return device
