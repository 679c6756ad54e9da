"""kernel_times: one launch of a decode attention over long contexts, against this machine's read bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import ceil
from statistics import median
from typing import Any, ClassVar

import torch
from torch import Tensor

from roseinfer.display.measured import MachineResult
from roseinfer.display.table import Table
from roseinfer.engine.config import check_device
from roseinfer.kernels.cases import PagedCase
from roseinfer.profiling import measure_machine
from roseinfer.profiling.clock import seconds_of

from .provenance import describe_host


@dataclass(frozen=True)
class Shape:
    """A batch of equally long sequences. context_len: cached tokens of each. group: query heads on each KV head."""

    batch_size: int
    context_len: int
    num_kv_heads: int
    group: int
    head_dim: int
    block_size: int = 64
    dtype: str = "bfloat16"


SHAPES = (
    Shape(64, 1024, 12, 1, 64),  # GPT-2 small
    Shape(64, 1024, 12, 1, 64, dtype="float32"),
    Shape(64, 4096, 2, 7, 64),  # Qwen2.5-0.5B
    Shape(32, 4096, 4, 7, 128),  # Qwen2.5-7B
    Shape(1, 32768, 4, 7, 128),  # one program a KV head: most of a GPU is idle
)
COLUMNS = {
    "dtype": "dtype",
    "batch_size": "batch",
    "context_len": "cached tokens",
    "num_kv_heads": "KV heads",
    "group": "query heads on each",
    "head_dim": "head size",
    "kv_bytes": "KV bytes",
}
TIMES = {"us": "{:,.1f}", "KV GB/s": "{:,.1f}", "of read bandwidth": "{:.1%}"}


@dataclass(frozen=True, kw_only=True)
class KernelTimes(MachineResult):
    """Launch times of a decode attention kernel.

    rows: one for each shape, with the median seconds of a launch; bandwidth counts the bytes of the cached K and V
    alone. samples: seconds of each launch.
    """

    SHORT: ClassVar = ("batch_size", "context_len", "dtype", "seconds", "bandwidth_share")

    def tables(self, width: int | None, long: bool = False) -> Iterable[str]:
        table = self.table()
        return [f"{table.title}, {self.device}\n{table.text_table(list(table.df)).text(width)}"]

    def table(self) -> Table:
        import pandas as pd

        df = pd.DataFrame(self.rows)
        df["us"], df["KV GB/s"] = 1e6 * df["seconds"], df["kv_bytes"] / df["seconds"] / 1e9
        df = df.rename(columns=COLUMNS | {"bandwidth_share": "of read bandwidth"})
        return Table(
            df[[*COLUMNS.values(), *TIMES]],
            exact=list(COLUMNS.values()),
            live=list(TIMES),
            title="Paged attention, one launch",
            formats=TIMES | {"cached tokens": "{:,}", "KV bytes": "{:,}"},
            bars=["of read bandwidth"],
        )


def kernel_times(kernel: Callable[..., Tensor], device: str, shapes: Sequence[Shape] = SHAPES) -> KernelTimes:
    """Time a kernel for the attention of one decode step over block tables. It takes the arguments of a PagedCase."""
    check_device(device)
    where, rows, samples = torch.device(device), [], []
    for shape in shapes:
        dtype = getattr(torch, shape.dtype)
        samples.append(launch_seconds(partial(kernel, *large_inputs(shape, where)), where))
        kv_bytes = 2 * shape.batch_size * shape.context_len * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        seconds, bandwidth = median(samples[-1]), measure_machine(where, dtype).read_bytes_per_s
        share = kv_bytes / seconds / bandwidth
        rows.append(asdict(shape) | {"kv_bytes": kv_bytes, "seconds": seconds, "bandwidth_share": share})
    return KernelTimes(
        arguments={"kernel": kernel.__name__, "device": device}, **describe_host(where), rows=rows, samples=samples
    )


def large_inputs(shape: Shape, device: torch.device) -> PagedCase:
    """Make equally long sequences in shuffled blocks, on the device."""
    columns = ceil(shape.context_len / shape.block_size)
    like: dict[str, Any] = {"dtype": getattr(torch, shape.dtype), "device": device}
    num_blocks, heads = shape.batch_size * columns, (shape.num_kv_heads, shape.head_dim)
    k_cache, v_cache = torch.randn((2, num_blocks, shape.block_size, *heads), **like)
    q = torch.randn((shape.batch_size, shape.group * shape.num_kv_heads, shape.head_dim), **like)
    k, v = torch.randn((2, shape.batch_size, *heads), **like)
    table = torch.randperm(num_blocks, device=device).view(shape.batch_size, columns).to(torch.int32)
    lens = torch.full((shape.batch_size,), shape.context_len, dtype=torch.int32, device=device)
    return PagedCase(q, k, v, k_cache, v_cache, table, lens)


def launch_seconds(launch: Callable[[], object], device: torch.device) -> list[float]:
    """Time each launch in seconds: on a GPU between two CUDA events, with its L2 cache cleared before."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return [ms / 1e3 for ms in do_bench(launch, return_mode="all")]
    launch()  # compiles
    return [seconds_of(launch) for _ in range(3)]
