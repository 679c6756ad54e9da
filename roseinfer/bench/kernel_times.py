"""kernel_times: the engine's attention in one decode step over long contexts, against this machine's read bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from statistics import median
from typing import Any, ClassVar

import torch

from roseinfer.blocks import BLOCK_SIZE
from roseinfer.display.measured import MachineResult
from roseinfer.display.table import Table
from roseinfer.display.text_table import Column, TextTable
from roseinfer.engine.config import check_device
from roseinfer.graphs import capture
from roseinfer.kernels.attention import attention_for
from roseinfer.kernels.flat_cases import FlatCase
from roseinfer.profiling import measure_machine
from roseinfer.profiling.clock import seconds_of

from .provenance import describe_host


@dataclass(frozen=True)
class Shape:
    """A batch of equally long sequences. context_len: tokens of each. group: query heads on each KV head."""

    batch_size: int
    context_len: int
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int = BLOCK_SIZE
    dtype: str = "bfloat16"


SHAPES = (
    Shape(1, 300, 12, 1, 64),  # GPT-2 small
    Shape(8, 300, 12, 1, 64),
    Shape(64, 300, 12, 1, 64),
    Shape(64, 1024, 12, 1, 64),
    Shape(64, 1024, 12, 1, 64, dtype="float32"),
    Shape(64, 4096, 2, 7, 64),  # Qwen2.5-0.5B
    Shape(32, 4096, 4, 7, 128),  # Qwen2.5-7B
    Shape(1, 32768, 4, 7, 128),  # a GPU is busy only if the context is split
)
COLUMNS = {
    "dtype": "dtype",
    "batch": "batch_size",
    "context": "context_len",
    "KV heads": "num_kv_heads",
    "query heads on each": "group",
    "head size": "head_dim",
    "KV bytes": "kv_bytes",
}
TIMES = ("us", "KV GB/s", "of read bandwidth")
FORMATS = {
    "context": "{:,}",
    "KV bytes": "{:,}",
    "us": "{:,.1f}",
    "KV GB/s": "{:,.1f}",
    "of read bandwidth": "{:.1%}",
}


@dataclass(frozen=True, kw_only=True)
class KernelTimes(MachineResult):
    """Times of attention in decode steps.

    arguments: kernel: its name, device. rows: one for each shape, with the median seconds of a call; bandwidth counts
    the bytes of K and V of the contexts alone. samples: seconds of each call.
    """

    SHORT: ClassVar = ("batch_size", "context_len", "dtype", "seconds", "bandwidth_share")

    def title(self) -> str:
        return f"Attention of one decode step, {self.arguments['kernel']}"

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows by the names of COLUMNS and TIMES."""
        return [
            {name: row[field] for name, field in COLUMNS.items()}
            | {"us": 1e6 * row["seconds"], "KV GB/s": row["kv_bytes"] / row["seconds"] / 1e9}
            | {"of read bandwidth": row["bandwidth_share"]}
            for row in self.rows
        ]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        columns = [Column(name, FORMATS.get(name, "{}").format, of=name) for name in (*COLUMNS, *TIMES)]
        return [f"{self.title()}, {self.device}\n{TextTable.of_rows(columns, self.shown_rows()).text(width)}"]

    def table(self) -> Table:
        """Return the rows as a lesson shows them. It needs pandas, which a machine of a GPU report may lack."""
        import pandas as pd

        return Table(
            pd.DataFrame(self.shown_rows()),
            exact=list(COLUMNS),
            live=list(TIMES),
            title=self.title(),
            formats=FORMATS,
            bars=["of read bandwidth"],
        )


def kernel_times(device: str, shapes: Sequence[Shape] = SHAPES) -> KernelTimes:
    """Time the attention that the engine uses on a device, in decode steps of these shapes."""
    check_device(device)
    where, rows, samples = torch.device(device), [], []
    attention = attention_for(where)
    for shape in shapes:
        dtype = getattr(torch, shape.dtype)
        samples.append(call_seconds(partial(attention, *large_inputs(shape, where)), where))
        kv_bytes = 2 * shape.batch_size * shape.context_len * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        seconds, bandwidth = median(samples[-1]), measure_machine(where, dtype).read_bytes_per_s
        share = kv_bytes / seconds / bandwidth
        rows.append(asdict(shape) | {"kv_bytes": kv_bytes, "seconds": seconds, "bandwidth_share": share})
    name = getattr(attention, "__name__", type(attention).__name__)
    return KernelTimes(arguments={"kernel": name, "device": device}, **describe_host(where), rows=rows, samples=samples)


def large_inputs(shape: Shape, device: torch.device) -> FlatCase:
    """Make a decode step of equally long sequences with random values, in shuffled blocks, on the device."""
    num_seqs, size = shape.batch_size, shape.block_size
    columns = ceil(shape.context_len / size)
    like: dict[str, Any] = {"dtype": getattr(torch, shape.dtype), "device": device}
    num_blocks, num_heads = num_seqs * columns, shape.group * shape.num_kv_heads
    k_cache, v_cache = torch.randn((2, num_blocks + 1, shape.num_kv_heads, size, shape.head_dim), **like)
    qkv = torch.randn((num_seqs, num_heads + 2 * shape.num_kv_heads, shape.head_dim), **like)
    q, k, v = qkv.split([num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    table = torch.randperm(num_blocks, device=device).view(num_seqs, columns).to(torch.int32)
    last = shape.context_len - 1
    slots = table[:, last // size] * size + last % size
    starts = torch.arange(num_seqs + 1, dtype=torch.int32, device=device)
    lens = torch.full((num_seqs,), shape.context_len, dtype=torch.int32, device=device)
    return FlatCase(q, k, v, k_cache, v_cache, slots, starts, lens, table)


def call_seconds(call: Callable[[], object], device: torch.device) -> list[float]:
    """Time each call in seconds; on a GPU as a graph between two events, with the L2 cache cleared before."""
    graph = capture(call, device)
    if device.type == "cuda":
        from triton.testing import do_bench

        return [ms / 1e3 for ms in do_bench(graph.replay, return_mode="all")]
    return [seconds_of(graph.replay) for _ in range(3)]
