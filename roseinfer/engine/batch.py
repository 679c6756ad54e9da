"""Batch: what one step computes. InputBuffers: where a step's inputs lie, at the same addresses on every step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from roseinfer.sequence import Sequence

from .block_manager import BlockManager

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences and, of each, the tokens that this step computes: N in all, one sequence after another.

    seqs[i] has the tokens from query_start[i] to query_start[i + 1]. Prompts, chunks of them and single new tokens may
    stand beside each other. The last token of each sequence is where its next one is chosen.

    token_ids [N], positions [N] int64. slot_mapping [N], query_start [B + 1], context_lens [B], block_tables [B, W]
    int32 as kernels/attention.py has them. sample_rows [B] int64: rows of the hidden states to choose tokens from.
    A decode batch may have more rows than sequences; those behind them are for nobody, see `fill_up`.
    """

    seqs: list[Sequence]
    num_new: list[int]
    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    sample_rows: Tensor

    @property
    def num_rows(self) -> int:
        """Sequences, with the rows for nobody."""
        return len(self.context_lens)

    @property
    def is_decode(self) -> bool:
        """One new token of each sequence."""
        return len(self.token_ids) == self.num_rows


def padded_bytes(shapes: Shapes) -> list[int]:
    """Of each array in InputBuffers; each begins at a multiple of 64 bytes."""
    return [-(-prod(shape) * dtype.itemsize // 64) * 64 for shape, dtype in shapes.values()]


class InputBuffers:
    """Named arrays in one piece of memory, on the host for writing and on the device for reading.

    One piece, so that all inputs of a step go to a GPU in one copy; the same piece on every step, because a captured
    graph reads the addresses that it was captured with. On a CPU the two are one memory, and nothing is copied.
    """

    def __init__(self, shapes: Shapes, device: torch.device) -> None:
        ends = np.cumsum(padded_bytes(shapes))
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(int(ends[-1]), dtype=torch.uint8, pin_memory=on_gpu)
        self._device = torch.zeros_like(self._host, device=device) if on_gpu else self._host
        self._copied = torch.cuda.Event() if on_gpu else None
        starts = dict(zip(shapes, [0, *ends[:-1].tolist()], strict=True))
        cuts = {name: slice(starts[name], starts[name] + prod(shape) * dtype.itemsize)
                for name, (shape, dtype) in shapes.items()}  # fmt: skip
        self.host: dict[str, np.ndarray] = {
            name: self._host[cut].view(shapes[name][1]).view(shapes[name][0]).numpy() for name, cut in cuts.items()
        }
        self.device: dict[str, Tensor] = {
            name: self._device[cut].view(shapes[name][1]).view(shapes[name][0]) for name, cut in cuts.items()
        }

    def wait(self) -> None:
        """Until the last copy has read the host's memory: then it may be written again."""
        if self._copied:
            self._copied.synchronize()

    def upload(self) -> None:
        if self._copied:
            self._device.copy_(self._host, non_blocking=True)
            self._copied.record()


def batch_shapes(max_num_seqs: int, max_num_tokens: int, max_blocks: int) -> Shapes:
    """Of BatchBuffers."""
    return {
        "token_ids": ((max_num_tokens,), torch.int64), "positions": ((max_num_tokens,), torch.int64),
        "slot_mapping": ((max_num_tokens,), torch.int32), "query_start": ((max_num_seqs + 1,), torch.int32),
        "context_lens": ((max_num_seqs,), torch.int32), "block_tables": ((max_num_seqs, max_blocks), torch.int32),
        "sample_rows": ((max_num_seqs,), torch.int64),
    }  # fmt: skip


class BatchBuffers(InputBuffers):
    """The inputs of batches of up to max_num_seqs sequences and max_num_tokens tokens."""

    def __init__(self, max_num_seqs: int, max_num_tokens: int, max_blocks: int, device: torch.device) -> None:
        super().__init__(batch_shapes(max_num_seqs, max_num_tokens, max_blocks), device)
        self._kept: dict[int, tuple[dict[str, np.ndarray], dict[str, Tensor]]] = {}

    def views(self, num_seqs: int, num_tokens: int) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
        """The front of each array, as much as a batch fills. Those of decode steps are kept: cutting them anew on every
        step takes longer than writing them."""
        if num_tokens == num_seqs and num_seqs in self._kept:
            return self._kept[num_seqs]
        lengths = dict.fromkeys(("token_ids", "positions", "slot_mapping"), num_tokens) | {"query_start": num_seqs + 1}
        cuts = {name: slice(lengths.get(name, num_seqs)) for name in self.host}
        views = ({name: x[cuts[name]] for name, x in self.host.items()},
                 {name: x[cuts[name]] for name, x in self.device.items()})  # fmt: skip
        if num_tokens == num_seqs:
            self._kept[num_seqs] = views
        return views


def make_batch(
    seqs: list[Sequence], num_new: list[int], blocks: BlockManager, buffers: BatchBuffers, num_rows: int
) -> Batch:
    """The next num_new[i] tokens of each sequence that are not cached yet, written to the buffers.

    Every sequence holds blocks for them. num_rows: of the batch; a decode batch may have more than sequences. Python's
    lists have one number a sequence; what is one number a token is computed from these by NumPy.
    """
    buffers.wait()
    num_seqs, num_tokens, size = len(seqs), sum(num_new), blocks.block_size
    host, device = buffers.views(num_seqs, num_tokens)
    cached = [seq.num_cached_tokens for seq in seqs]
    rows = [blocks.row_of(seq.seq_id) for seq in seqs]
    # "clip": rows are in range, and without the check NumPy writes to `out` without a buffer between.
    np.take(blocks.table, rows, axis=0, out=host["block_tables"], mode="clip")
    if num_tokens == num_seqs:
        host["token_ids"][:] = [seq.token_ids[at] for seq, at in zip(seqs, cached, strict=True)]
        host["positions"][:] = cached
        host["slot_mapping"][:] = [
            blocks.of(seq.seq_id)[at // size] * size + at % size for seq, at in zip(seqs, cached, strict=True)
        ]
        host["query_start"][:] = np.arange(num_seqs + 1)
        host["sample_rows"][:] = np.arange(num_seqs)
        np.add(host["positions"], 1, out=host["context_lens"], casting="same_kind")
    else:
        first, new = np.array(cached), np.array(num_new)
        starts = host["query_start"]
        starts[0] = 0
        np.cumsum(new, out=starts[1:])
        positions = np.arange(num_tokens) + np.repeat(first - starts[:-1], new)
        row_of_token = np.repeat(rows, new)
        host["token_ids"][:] = [
            token for seq, at, n in zip(seqs, cached, num_new, strict=True) for token in seq.token_ids[at : at + n]
        ]
        host["positions"][:] = positions
        host["slot_mapping"][:] = blocks.table[row_of_token, positions // size] * size + positions % size
        host["context_lens"][:] = first + new
        host["sample_rows"][:] = starts[1:] - 1
    if num_rows > num_seqs:
        device = fill_up(buffers, num_seqs, num_rows, blocks)
    buffers.upload()
    return Batch(seqs, num_new, **device)


def fill_up(buffers: BatchBuffers, num_seqs: int, num_rows: int, blocks: BlockManager) -> dict[str, Tensor]:
    """Rows num_seqs to num_rows of a decode batch: each a token at position 0, alone in the pool's dummy block."""
    host, device = buffers.views(num_rows, num_rows)
    dummy_block = blocks.num_blocks
    for name, value in (
        ("token_ids", 0), ("positions", 0), ("slot_mapping", dummy_block * blocks.block_size), ("context_lens", 1),
    ):  # fmt: skip
        host[name][num_seqs:] = value
    host["block_tables"][num_seqs:, 0] = dummy_block
    host["query_start"][num_seqs + 1 :] = np.arange(num_seqs + 1, num_rows + 1)
    host["sample_rows"][num_seqs:] = np.arange(num_seqs, num_rows)
    return device
