"""Batch: what one step computes. InputBuffers: where a step's inputs lie, at the same addresses on every step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from roseinfer.sequence import Sequence

from .block_manager import BlockManager
from .scheduler import NOTHING, Ahead

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences and, of each, the tokens that this step computes: N in all, one sequence after another.

    seqs[i] has the tokens from query_start[i] to query_start[i + 1]. Prompts, chunks of them and single new tokens may
    stand beside each other. The last token of each sequence is where its next one is chosen.

    token_ids [N], positions [N] int64. slot_mapping [N], query_start [B + 1], context_lens [B], block_tables [B, W]
    int32 as kernels/attention.py has them. sample_rows [B] int64: rows of the hidden states to choose tokens from.
    A decode batch may have more rows than sequences; those behind them are for nobody, see `fill_up`.
    sources [B] int64: of the first num_fed tokens, the row of the step in flight that makes the token, or -1 where
    token_ids has it. host: which of the buffers' host memories it was written to.
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
    sources: Tensor
    num_fed: int = 0
    host: int = 0

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
        cuts = {name: slice(starts[name], starts[name] + prod(shape) * dtype.itemsize)
                for name, (shape, dtype) in shapes.items()}  # fmt: skip
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
        """What was written in that turn, None for this one, becomes what the device reads."""
        turn = self.turn if turn is None else turn
        if self._is_apart:
            self._device.copy_(self._memories[turn], non_blocking=True)
        if self._copied:
            self._copied[turn].record()


def batch_shapes(max_num_seqs: int, max_num_tokens: int, max_blocks: int) -> Shapes:
    """Of BatchBuffers."""
    return {
        "token_ids": ((max_num_tokens,), torch.int64), "positions": ((max_num_tokens,), torch.int64),
        "slot_mapping": ((max_num_tokens,), torch.int32), "query_start": ((max_num_seqs + 1,), torch.int32),
        "context_lens": ((max_num_seqs,), torch.int32), "block_tables": ((max_num_seqs, max_blocks), torch.int32),
        "sample_rows": ((max_num_seqs,), torch.int64), "sources": ((max_num_seqs,), torch.int64),
    }  # fmt: skip


class BatchBuffers(InputBuffers):
    """The inputs of batches of up to max_num_seqs sequences and max_num_tokens tokens."""

    def __init__(
        self, max_num_seqs: int, max_num_tokens: int, max_blocks: int, device: torch.device, num_hosts: int = 1
    ) -> None:
        super().__init__(batch_shapes(max_num_seqs, max_num_tokens, max_blocks), device, num_hosts)
        self._kept: dict[tuple[int, int], tuple[dict[str, np.ndarray], dict[str, Tensor]]] = {}

    def views(self, num_seqs: int, num_tokens: int) -> tuple[dict[str, np.ndarray], dict[str, Tensor]]:
        """The front of each array, as much as a batch fills. Those of decode steps are kept: cutting them anew on every
        step takes longer than writing them."""
        if num_tokens == num_seqs and (self.turn, num_seqs) in self._kept:
            return self._kept[self.turn, num_seqs]
        lengths = dict.fromkeys(("token_ids", "positions", "slot_mapping"), num_tokens) | {"query_start": num_seqs + 1}
        cuts = {name: slice(lengths.get(name, num_seqs)) for name in self.host}
        views = ({name: x[cuts[name]] for name, x in self.host.items()},
                 {name: x[cuts[name]] for name, x in self.device.items()})  # fmt: skip
        if num_tokens == num_seqs:
            self._kept[self.turn, num_seqs] = views
        return views


def make_batch(
    seqs: list[Sequence], num_new: list[int], blocks: BlockManager, buffers: BatchBuffers, num_rows: int,
    ahead: Ahead = NOTHING,
) -> Batch:  # fmt: skip
    """The next num_new[i] tokens of each sequence that are not cached yet, written to the buffers.

    Every sequence holds blocks for them. num_rows: of the batch; a decode batch may have more than sequences. ahead:
    what a step in flight computes counts as cached; sequences that it will give their next token come first here.
    Python's lists have one number a sequence; what is one number a token is computed from these by NumPy.
    """
    buffers.begin()
    num_seqs, num_tokens, size = len(seqs), sum(num_new), blocks.block_size
    host, device = buffers.views(num_seqs, num_tokens)
    cached = [seq.num_cached_tokens + ahead.get(seq.seq_id, 0) for seq in seqs]
    rows = [blocks.row_of(seq.seq_id) for seq in seqs]
    num_fed = write_fed(host, seqs, cached, ahead) if ahead else 0
    # "clip": rows are in range, and without the check NumPy writes to `out` without a buffer between.
    np.take(blocks.table, rows, axis=0, out=host["block_tables"], mode="clip")
    if num_tokens == num_seqs:
        known = zip(seqs[num_fed:], cached[num_fed:], strict=True)
        host["token_ids"][num_fed:] = [seq.token_ids[at] for seq, at in known]
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
        known = zip(seqs[num_fed:], cached[num_fed:], num_new[num_fed:], strict=True)
        host["token_ids"][num_fed:] = [token for seq, at, n in known for token in seq.token_ids[at : at + n]]
        host["positions"][:] = positions
        host["slot_mapping"][:] = blocks.table[row_of_token, positions // size] * size + positions % size
        host["context_lens"][:] = first + new
        host["sample_rows"][:] = starts[1:] - 1
    if num_rows > num_seqs:
        device = fill_up(buffers, num_seqs, num_rows, blocks)
    return Batch(seqs, num_new, **device, num_fed=num_fed, host=buffers.turn)


def write_fed(host: dict[str, np.ndarray], seqs: list[Sequence], cached: list[int], ahead: Ahead) -> int:
    """Rows from the first one to the last whose token is not known on the host: how many, their sources, and the tokens
    of those between them that are known."""
    row_of = {seq_id: row for row, seq_id in enumerate(ahead)}
    fed = [row_of[seq.seq_id] if at == len(seq) else -1 for seq, at in zip(seqs, cached, strict=True)]
    num_fed = max((row + 1 for row, source in enumerate(fed) if source >= 0), default=0)
    host["sources"][:num_fed] = fed[:num_fed]
    host["token_ids"][:num_fed] = [
        seq.token_ids[at] if source < 0 else 0 for seq, at, source in zip(seqs, cached, fed[:num_fed], strict=False)
    ]
    return num_fed


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
