"""kernel_times: one call of the engine's attention for each kind of batch, against this machine's read bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from math import ceil
from statistics import median
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

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
    """A batch of equally long sequences, and perhaps a prompt beside them.

    context_len: tokens of each sequence, the new ones included. group: query heads on each KV head. num_new: tokens
    that each sequence brings. prompt_len: tokens of one prompt more, of which nothing is cached.
    """

    batch_size: int
    context_len: int
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int = BLOCK_SIZE
    dtype: str = "bfloat16"
    num_new: int = 1
    prompt_len: int = 0

    @property
    def kind(self) -> str:
        if self.prompt_len:
            return "mixed"
        if self.num_new == 1:
            return "decode"
        return "prompts" if self.num_new == self.context_len else "verify"

    @property
    def new_lens(self) -> list[int]:
        """How many tokens each sequence brings."""
        return [self.num_new] * self.batch_size + [self.prompt_len] * (self.prompt_len > 0)

    @property
    def context_lens(self) -> list[int]:
        """How many tokens each sequence has, the new ones included."""
        return [self.context_len] * self.batch_size + [self.prompt_len] * (self.prompt_len > 0)

    @property
    def kv_bytes(self) -> int:
        """The bytes of K and V of all contexts."""
        itemsize = getattr(torch, self.dtype).itemsize
        return 2 * sum(self.context_lens) * self.num_kv_heads * self.head_dim * itemsize

    @property
    def flops(self) -> int:
        """The operations of both products, with the tokens that each new token sees, itself included."""
        pairs = zip(self.context_lens, self.new_lens, strict=True)
        seen = sum(new * context - new * (new - 1) // 2 for context, new in pairs)
        return 4 * seen * self.group * self.num_kv_heads * self.head_dim


SHAPES = (
    Shape(1, 300, 12, 1, 64),  # GPT-2 small
    Shape(8, 300, 12, 1, 64),
    Shape(64, 300, 12, 1, 64),
    Shape(64, 1024, 12, 1, 64),
    Shape(64, 1024, 12, 1, 64, dtype="float32"),
    Shape(64, 4096, 2, 7, 64),  # Qwen2.5-0.5B
    Shape(32, 4096, 4, 7, 128),  # Qwen2.5-7B
    Shape(1, 32768, 4, 7, 128),  # a GPU is busy only if the context is split
    Shape(1, 1024, 12, 1, 64, num_new=1024),
    Shape(8, 256, 12, 1, 64, num_new=256),
    Shape(1, 4096, 8, 4, 128, num_new=4096),  # Llama-3-8B
    Shape(64, 1025, 12, 1, 64, prompt_len=512),
    Shape(8, 1029, 12, 1, 64, num_new=5),
    Shape(64, 1029, 12, 1, 64, num_new=5),
)
COLUMNS = {
    "batch of": "kind",
    "dtype": "dtype",
    "batch": "batch_size",
    "context": "context_len",
    "new tokens": "new_tokens",
    "KV heads": "num_kv_heads",
    "query heads on each": "group",
    "head size": "head_dim",
    "KV bytes": "kv_bytes",
}
KEYS = 4  # of these columns say which row it is, where a narrow terminal gets the table in parts
TIMES = ("us", "KV GB/s", "of read bandwidth", "GFLOP/s", "SDPA us")
FORMATS = {
    "context": "{:,}",
    "new tokens": "{:,}",
    "KV bytes": "{:,}",
    "us": "{:,.1f}",
    "KV GB/s": "{:,.1f}",
    "of read bandwidth": "{:.1%}",
    "GFLOP/s": "{:,.0f}",
    "SDPA us": "{:,.1f}",
}


@dataclass(frozen=True, kw_only=True)
class KernelTimes(MachineResult):
    """Times of attention over batches of each kind.

    arguments: kernel: its name, device. rows: one for each shape, with the median seconds of a call; bandwidth counts
    the bytes of K and V of the contexts alone. sdpa_seconds: of PyTorch's scaled_dot_product_attention on the same
    prompts, which writes no pool; None for other batches. samples: seconds of each call. A file from before there were
    other kinds of batches has rows of decodes, and lacks what all of those have in common.
    """

    SHORT: ClassVar = ("batch_size", "context_len", "dtype", "kind", "seconds", "bandwidth_share", "sdpa_seconds")

    def title(self) -> str:
        return f"Attention of one step, {self.arguments['kernel']}"

    def shown_rows(self) -> list[dict[str, Any]]:
        """Return the rows by the names of COLUMNS and TIMES."""
        return [_shown(row) for row in self.rows]

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        columns = [Column(name, FORMATS.get(name, "{}").format, of=name) for name in (*COLUMNS, *TIMES)]
        table = TextTable.of_rows(columns, self.shown_rows(), keys=KEYS)
        return [f"{self.title()}, {self.device}\n{table.text(width)}"]

    def table(self) -> Table:
        """Return the decodes as a lesson shows them. It needs pandas, which a machine of a GPU report may lack."""
        import pandas as pd

        decodes = [row for row in self.shown_rows() if row["batch of"] == "decode"]
        exact = [name for name in COLUMNS if name not in ("batch of", "new tokens")]
        live = ["us", "KV GB/s", "of read bandwidth"]
        return Table(
            pd.DataFrame(decodes)[[*exact, *live]],
            exact=exact,
            live=live,
            title=f"Attention of one decode step, {self.arguments['kernel']}",
            formats={name: form for name, form in FORMATS.items() if name in (*exact, *live)},
            bars=["of read bandwidth"],
        )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    shape, seconds = Shape(**{own.name: row[own.name] for own in fields(Shape) if own.name in row}), row["seconds"]
    told = row | {"kind": shape.kind, "new_tokens": sum(shape.new_lens)}
    sdpa = row.get("sdpa_seconds")
    return {name: told[field] for name, field in COLUMNS.items()} | {
        "us": 1e6 * seconds,
        "KV GB/s": row["kv_bytes"] / seconds / 1e9,
        "of read bandwidth": row["bandwidth_share"],
        "GFLOP/s": shape.flops / seconds / 1e9,
        "SDPA us": sdpa and 1e6 * sdpa,
    }


def kernel_times(device: str, shapes: Sequence[Shape] = SHAPES) -> KernelTimes:
    """Time the attention that the engine uses on a device, over batches of these shapes."""
    check_device(device)
    where, rows, samples = torch.device(device), [], []
    attention = attention_for(where, in_one_launch=True)
    for shape in shapes:
        case = large_inputs(shape, where)
        samples.append(call_seconds(partial(attention, *case, max_query_len=max(shape.new_lens)), where))
        sdpa = call_seconds(sdpa_of(shape, case), where) if shape.kind == "prompts" else None
        seconds, bandwidth = median(samples[-1]), measure_machine(where, case.q.dtype).read_bytes_per_s
        rows.append(
            asdict(shape)
            | {"kind": shape.kind, "kv_bytes": shape.kv_bytes, "flops": shape.flops, "seconds": seconds}
            | {"bandwidth_share": shape.kv_bytes / seconds / bandwidth, "sdpa_seconds": sdpa and median(sdpa)}
        )
    name = getattr(attention, "__name__", type(attention).__name__)
    return KernelTimes(arguments={"kernel": name, "device": device}, **describe_host(where), rows=rows, samples=samples)


def large_inputs(shape: Shape, device: torch.device) -> FlatCase:
    """Make a batch of a shape with random values, in shuffled blocks, on the device."""
    size, num_heads = shape.block_size, shape.group * shape.num_kv_heads
    new, context = (torch.tensor(lens, device=device) for lens in (shape.new_lens, shape.context_lens))
    num_seqs, columns = len(new), ceil(max(shape.context_lens) / size)
    num_blocks, num_tokens = num_seqs * columns, sum(shape.new_lens)
    like: dict[str, Any] = {"dtype": getattr(torch, shape.dtype), "device": device}
    k_cache, v_cache = torch.randn((2, num_blocks + 1, shape.num_kv_heads, size, shape.head_dim), **like)
    qkv = torch.randn((num_tokens, num_heads + 2 * shape.num_kv_heads, shape.head_dim), **like)
    q, k, v = qkv.split([num_heads, shape.num_kv_heads, shape.num_kv_heads], dim=1)
    table = torch.randperm(num_blocks, device=device).view(num_seqs, columns).to(torch.int32)
    starts = F.pad(new.cumsum(0), (1, 0))
    row = torch.arange(num_seqs, device=device).repeat_interleave(new)
    position = torch.arange(num_tokens, device=device) - starts[row] + (context - new)[row]
    slots = table[row, position // size] * size + position % size
    int32 = (x.to(torch.int32) for x in (slots, starts, context, table))
    return FlatCase(q, k, v, k_cache, v_cache, *int32)


def sdpa_of(shape: Shape, case: FlatCase) -> Callable[[], object]:
    """Return a call of PyTorch's attention on a batch of whole prompts."""
    q, k, v = (x.unflatten(0, (shape.batch_size, -1)).transpose(1, 2) for x in (case.q, case.k, case.v))  # [B, H, N, D]
    return partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=shape.group > 1)


def call_seconds(call: Callable[[], object], device: torch.device) -> list[float]:
    """Time each call in seconds; on a GPU as a graph between two events, with the L2 cache cleared before."""
    graph = capture(call, device)
    if device.type == "cuda":
        from triton.testing import do_bench

        return [ms / 1e3 for ms in do_bench(graph.replay, return_mode="all")]
    return [seconds_of(graph.replay) for _ in range(3)]
