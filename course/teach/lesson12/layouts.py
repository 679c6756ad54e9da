"""time_matrices and time_layouts: how fast a model's matrices are read, as they are and in other layouts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.display.table import Table
from roseinfer.kernels.onednn import pack, packed_linear, packs
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.linear import Int8Linear
from roseinfer.profiling import measure_machine
from roseinfer.profiling.floors import PASSES_BUDGET_S, passes

from ..measure import freed_memory
from ..views.rows_table import table

SECONDS = PASSES_BUDGET_S / 4  # to time one thing
STEPS = 10
OUTPUT = "output matrix"
USUAL_ROWS = 16  # of x: a hint to oneDNN, as in stage 12
LAYOUTS = "float32, row by row", "float32, packed", "bfloat16, packed", "8 bits"
EIGHT_BITS = LAYOUTS[-1]
Product = Callable[[Tensor], Tensor]


def time_matrices(model: GPT2) -> Table:
    """Time each kind of matrix of a GPT-2, for one row of x, in the order of a step.

    Between two turns of a matrix lie all others, so that only a cache as large as the model would hold it. Columns:
    bytes read per step, ms, GB/s, and the share of the bandwidth that this machine was measured to have.
    """
    width = model.config.hidden_size
    layers: Any = model.h  # of nn.Module, as whose children they are typed, they would have no attn
    kinds: dict[str, list[nn.Linear]] = {
        "joined Q, K and V": [layer.attn.c_attn for layer in layers],
        "attention's output": [layer.attn.c_proj for layer in layers],
        "MLP, up": [layer.mlp.c_fc for layer in layers],
        "MLP, down": [layer.mlp.c_proj for layer in layers],
    }
    in_turn: list[tuple[str, Product]] = [
        (name, linear) for layer in zip(*kinds.values(), strict=True) for name, linear in zip(kinds, layer, strict=True)
    ]
    weights = {name: [linear.weight for linear in own] for name, own in kinds.items()} | {OUTPUT: [model.wte.weight]}
    ms = _ms_of_a_step([*in_turn, (OUTPUT, model.logits)], {name: own[0].shape[1] for name, own in weights.items()})
    rows = [_row(name, own, ms[name]) for name, own in weights.items()]
    fastest = measure_machine().read_bytes_per_s
    for row in rows:
        row["of this machine's"] = 1e9 * row["GB/s"] / fastest
    formats = {"MB per step": "{:.1f}", "ms": "{:.2f}", "GB/s": "{:.1f}", "of this machine's": "{:.0%}"}
    title = f"One step reads these, width {width}"
    return table(rows, list(formats)[1:], title, formats=formats)


def _ms_of_a_step(products: Sequence[tuple[str, Product]], widths: Mapping[str, int]) -> dict[str, float]:
    """Multiply one row by all matrices in this order, STEPS times; return the best time of each kind in ms."""
    inputs = {name: torch.randn(1, width) for name, width in widths.items()}
    steps = []
    for _ in range(STEPS):
        seconds = dict.fromkeys(widths, 0.0)
        for name, product in products:
            began = perf_counter()
            product(inputs[name])
            seconds[name] += perf_counter() - began
        steps.append(seconds)
    return {name: 1e3 * min(seconds[name] for seconds in steps) for name in widths}


def _row(name: str, weights: list[Tensor], ms: float) -> dict[str, Any]:
    megabytes = sum(weight.nbytes for weight in weights) / 1e6
    return {
        "matrix": name,
        "per step": len(weights),
        "shape": str(list(weights[0].shape)),
        "MB per step": megabytes,
        "ms": ms,
        "GB/s": megabytes / ms,
    }


def time_layouts(model: GPT2, num_rows: Iterable[int]) -> Table:
    """Time the MLPs of all layers in each layout, one after another, for x of as many rows.

    flops per byte: for one row. A layout that this machine cannot pack is timed row by row.
    """
    num_rows = list(num_rows)
    layers: Any = model.h
    linears: list[nn.Linear] = [linear for layer in layers for linear in (layer.mlp.c_fc, layer.mlp.c_proj)]
    rows = []
    for name in LAYOUTS:
        made = [_in_layout(name, linear) for linear in linears]
        num_bytes = sum(own for _, own in made)
        rows.append({"layout": name, "bytes": num_bytes})
        rows[-1]["flops per byte"] = 2 * sum(linear.weight.numel() for linear in linears) / num_bytes
        for n in num_rows:
            inputs = [torch.randn(n, linear.weight.shape[1], dtype=_dtype(name)) for linear in linears]
            rows[-1][_column(n)] = best_ms(partial(_multiply, [product for product, _ in made], inputs))
        del made  # one layout at a time is in memory
        freed_memory.give_back()
    live = [_column(n) for n in num_rows]
    formats = {"bytes": "{:,}", "flops per byte": "{:.2f}"} | dict.fromkeys(live, "{:.2f}")
    return table(rows, live, "The MLPs of all layers, ms", formats=formats)


def best_ms(run: Callable[[], object]) -> float:
    return 1e3 * min(passes(run, "cpu", SECONDS))


def _column(num_rows: int) -> str:
    return "1 row" if num_rows == 1 else f"{num_rows} rows"


def _dtype(layout: str) -> torch.dtype:
    return torch.bfloat16 if "bfloat16" in layout else torch.float32


def _in_layout(name: str, linear: nn.Linear) -> tuple[Product, int]:
    """Return the product with a matrix in that layout, and the bytes of the matrix and its bias there."""
    if name == EIGHT_BITS:
        layer = Int8Linear(linear.weight, linear.bias)
        return layer, layer.nbytes
    weight, bias = (p.detach().to(_dtype(name)) for p in (linear.weight, linear.bias))
    num_bytes = weight.nbytes + bias.nbytes
    if "packed" in name and packs(weight.dtype):
        packed = pack(weight, USUAL_ROWS)
        return lambda x: packed_linear(x, packed, bias), num_bytes
    return partial(F.linear, weight=weight, bias=bias), num_bytes


def _multiply(products: list[Product], inputs: list[Tensor]) -> None:
    for product, x in zip(products, inputs, strict=True):
        product(x)
