"""Stage 21, tensor parallel: two processes share every layer, and add up their results twice per layer.

What was slow:  one device reads all weights and all of the KV cache in every step. A model that does not fit its
                memory does not run at all.
The change:     each process, a rank, has half of the heads and half of the MLP. The first matrix of each half of a
                block is cut by outputs, the second one by inputs (Megatron-LM: Shoeybi et al., 2019). So a rank
                computes from the one to the other alone; then an all-reduce adds the two results, and both ranks go on
                with the sum.
What it gives:  each rank keeps and reads half of the matrices and half of K and V.
Where it loses: two all-reduces per layer. Ranks on one CPU share its memory and cores, so here they save nothing.
                Embeddings, norms and the output matrix are whole on both ranks.

A delta on stage 10. The second rank is a process that all stages of this module share: it starts with the first one,
and ends with this process. Its messages go through a pipe, so that a step that failed here can be made again: the
second rank waits for a part, gets a new step instead, and drops the old one. The engine uses gloo or NCCL
(roseinfer/parallel), where a failed rank ends all. A model whose heads do not divide by two stays whole here; the
engine refuses it.
"""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roseinfer.kernels.attention import attention_for
from roseinfer.models import Model, ModelConfig, empty_model
from roseinfer.parallel.process import start_process
from roseinfer.profiling import span
from roseinfer.sequence import Sequence

from .s10_one_table import OneTable, WriteThenAttend

SIZE = 2
HALVED = ("num_heads", "num_kv_heads", "intermediate_size")
ROW_PARALLEL = ("c_proj", "o_proj", "down_proj")  # cut by inputs: what they give is a part of a sum
INPUTS = ("token_ids", "positions", "slot_mapping", "query_start", "context_lens", "block_tables")
AllReduce = Callable[[Tensor], Tensor]


class RowParallel(nn.Module):
    """A linear layer that has some columns of the weight, for the same columns of x. bias: None except on rank 0."""

    def __init__(self, weight: Tensor, bias: Tensor | None, all_reduce: AllReduce) -> None:
        super().__init__()
        self.weight, self.bias, self.all_reduce = weight, bias, all_reduce

    def forward(self, x: Tensor) -> Tensor:
        return self.all_reduce(nn.functional.linear(x, self.weight, self.bias))


class TensorParallel(OneTable):
    """OneTable over rank 0's part of the model. row_parallel: the class of the layers that are cut by inputs, here."""

    name = "s21_tensor_parallel"
    row_parallel: type[nn.Module] = RowParallel

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        self.other = second_rank_here() if divides(model.config) else None
        part = with_sums(part_of(model, 0), self.row_parallel, self.other.all_reduce) if self.other else model
        super().__init__(part, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        if self.other:
            self.num_processes = SIZE
            sizes = num_blocks, block_size, self.max_num_tokens
            self.key = self.other.hold(part_of(model, 1), sizes)
            weakref.finalize(self, self.other.unused.append, self.key)

    def write_tables(self, seqs: list[Sequence], num_new: list[int]) -> WriteThenAttend:
        """Write all inputs, as before, and send them to the second rank: it begins the same step."""
        step = super().write_tables(seqs, num_new)
        if self.other:
            lengths = dict.fromkeys(INPUTS, sum(num_new)) | {"query_start": len(seqs) + 1}
            lengths |= {"context_lens": len(seqs), "block_tables": len(seqs)}
            self.other.begin(self.key, {name: self.inputs_on_host[name][:n] for name, n in lengths.items()})
        return step

    def prefill(self, seq: Sequence) -> Tensor:
        with half_of_the_threads():
            return super().prefill(seq)

    def decode(self, seqs: list[Sequence]) -> Tensor:
        with half_of_the_threads():
            return super().decode(seqs)


# The split


def divides(config: ModelConfig) -> bool:
    return not any(getattr(config, name) % SIZE for name in HALVED)


def part_of(model: Model, rank: int) -> Model:
    """A rank's part: the same modules, with half of the heads and half of the MLP."""
    c = model.config
    part = empty_model(replace(c, **{name: getattr(c, name) // SIZE for name in HALVED}))
    weights = {name: cut_for(rank, name, w.detach(), c).contiguous() for name, w in model.named_parameters()}
    part.load_state_dict(weights, assign=True)
    return part.requires_grad_(False).eval()


def cut_for(rank: int, name: str, weight: Tensor, c: ModelConfig) -> Tensor:
    """A rank's part of a weight [out, in] or a bias [out]. q, k and v lie in one matrix, and each is cut by heads."""
    module = name.split(".")[-2]
    if module in ROW_PARALLEL:
        if name.endswith("bias"):
            return weight if rank == 0 else torch.zeros_like(weight)  # added once
        return weight.chunk(SIZE, dim=1)[rank]
    rows = {
        "c_attn": [n * c.head_dim for n in (c.num_heads, c.num_kv_heads, c.num_kv_heads)],
        "c_fc": [c.intermediate_size],
        "gate_up_proj": [c.intermediate_size] * 2,
    }
    rows["qkv_proj"] = rows["c_attn"]
    if module not in rows:
        return weight
    return torch.cat([one.chunk(SIZE)[rank] for one in weight.split(rows[module])])


def with_sums(part: Model, layer: Callable[..., nn.Module], all_reduce: AllReduce) -> Model:
    """Replace what is cut by inputs: after the attention and after the MLP, results are summed."""
    for parent in list(part.modules()):
        for name, child in list(parent.named_children()):
            if name in ROW_PARALLEL:
                setattr(parent, name, layer(child.weight, child.bias, all_reduce))
    return part


# Two ranks and a pipe


class Other:
    """Rank 0's view of the second rank. unused: keys of parts whose stages are gone."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.steps, self.keys = connection, 0, itertools.count()
        self.unused: list[int] = []

    def hold(self, part: Model, sizes: tuple[int, int, int]) -> int:
        """Send a part of a model, and how large its pool is. The key to it."""
        file = io.BytesIO()
        torch.save(part.state_dict(), file)
        key = next(self.keys)
        self.connection.send(("hold", (key, part.config, file.getvalue(), sizes, str(part.device))))
        return key

    def begin(self, key: int, inputs: dict[str, np.ndarray]) -> None:
        self.steps += 1
        dropped = [self.unused.pop() for _ in range(len(self.unused))]
        self.connection.send(("step", (self.steps, key, inputs, dropped)))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Add the second rank's part. Parts of steps that have failed are still in the pipe: they are dropped."""
        with span("roseinfer.parallel.all_reduce"):
            self.connection.send(("part", as_bytes(x)))
            step, part = self.connection.recv()
            while step != self.steps:
                step, part = self.connection.recv()
            return x.add_(from_bytes(part, x))


@cache
def second_rank_here() -> Other:
    """The second rank of this process, started when it is first asked for."""
    _, connection = start_process(second_rank, max(1, torch.get_num_threads() // SIZE))
    return Other(connection)


def second_rank(connection: Connection, num_threads: int) -> None:
    """What the second process runs, until the first one is gone."""
    torch.set_num_threads(num_threads)
    second = Second(connection)
    message = None
    with torch.inference_mode():
        while True:
            try:
                kind, args = message or connection.recv()
                message = None
                getattr(second, kind)(*args)
            except NewStep as new:
                message = new.args
            except EOFError:
                return


class NewStep(Exception):
    """Rank 0 has begun another step: the one that is under way has failed there. Its message."""


class Second:
    """The second rank: parts of models, and pools, by key."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.number = connection, 0
        self.parts: dict[int, Any] = {}

    def hold(self, key: int, config: ModelConfig, weights: bytes, sizes: tuple[int, int, int], device: str) -> None:
        num_blocks, block_size, max_num_tokens = sizes
        part = empty_model(config)
        part.load_state_dict(torch.load(io.BytesIO(weights), map_location=device), assign=True)
        with_sums(part.requires_grad_(False).eval(), RowParallel, self.all_reduce)
        shape = 2, config.num_layers, num_blocks, config.num_kv_heads, block_size, config.head_dim
        pool = torch.zeros(shape, dtype=part.dtype, device=device)
        attended = torch.empty(max_num_tokens, config.num_heads, config.head_dim, dtype=part.dtype, device=device)
        self.parts[key] = part, pool, attended, attention_for(part.device)

    def step(self, number: int, key: int, inputs: dict[str, np.ndarray], dropped: list[int]) -> None:
        self.number = number
        for unused in dropped:
            del self.parts[unused]
        model, pool, attended, attention = self.parts[key]
        token_ids, positions, *where = (torch.from_numpy(x).to(model.device) for x in inputs.values())
        out = attended[: len(token_ids)]
        model(token_ids, positions, lambda layer, q, k, v: attention(q, k, v, *pool[:, layer], *where, out))

    def all_reduce(self, x: Tensor) -> Tensor:
        kind, args = self.connection.recv()
        if kind != "part":
            raise NewStep(kind, args)
        self.connection.send((self.number, as_bytes(x)))
        return x.add_(from_bytes(args, x))


def as_bytes(x: Tensor) -> bytes:
    return x.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def from_bytes(part: bytes, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(part), dtype=like.dtype).view(like.shape).to(like.device)


@contextmanager
def half_of_the_threads() -> Iterator[None]:
    """The two ranks share this machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // SIZE))
    try:
        yield
    finally:
        torch.set_num_threads(before)
