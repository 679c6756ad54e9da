"""time_products: how fast one row of x meets a model's largest matrices, by libraries and by plain loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from roseinfer.display.table import Table
from roseinfer.kernels.numba_calls import run_parallel
from roseinfer.kernels.onednn import pack, packed_linear, packs
from roseinfer.models.gpt2 import GPT2
from roseinfer.profiling import measure_machine

from ..measure.median_times import median_ms
from ..views.rows_table import table
from .own_kernel import compiled_loop, does_nothing


def time_products(model: GPT2, product: Callable[..., None], yours: Callable[..., None]) -> Table:
    """Time one row of x with the first MLP matrix of every layer in turn, so that no cache holds them.

    product: stage 18's, for rows of x. yours: as exercise 18.1 asks for it; left out while it does nothing. oneDNN's
    packed layout is left out where this machine does not pack.
    """
    layers: Any = model.h
    linears = [layer.mlp.c_fc for layer in layers]
    x = torch.randn(1, linears[0].in_features)
    weights = [(linear.weight.detach(), linear.bias.detach()) for linear in linears]
    arrays = [(weight.numpy(), bias.numpy()) for weight, bias in weights]
    out = np.empty((1, linears[0].out_features), np.float32)
    calls: dict[str, Callable[[], object]] = {
        "PyTorch, row-major": lambda: [F.linear(x, weight, bias) for weight, bias in weights]
    }
    if packs(torch.float32):
        packed = [(pack(weight, len(x)), bias) for weight, bias in weights]
        calls["oneDNN, packed (stage 12)"] = lambda: [packed_linear(x, weight, bias) for weight, bias in packed]
    loops = {"plain loops (stage 18)": (product, out, x.numpy()), "yours": (yours, out[0], x[0].numpy())}
    for name, (loop, to, row) in loops.items():
        if not does_nothing(loop):
            calls[name] = partial(_run, compiled_loop(loop), to, row, arrays)
    with torch.inference_mode():
        times = median_ms(calls)
    megabytes = sum(weight.nbytes for weight, _ in weights) / 1e6
    rows: list[dict[str, Any]] = [{"product": name, "ms": ms, "GB/s": megabytes / ms} for name, ms in times.items()]
    fastest = measure_machine().read_bytes_per_s / 1e9
    for row_of in rows:
        row_of["of this machine's"] = row_of["GB/s"] / fastest
    title = f"One row of x, {len(linears)} matrices of {list(weights[0][0].shape)}, {megabytes:.0f} MB"
    formats = {"ms": "{:.2f}", "GB/s": "{:.1f}", "of this machine's": "{:.0%}"}
    return table(rows, list(formats), title, formats=formats)


def _run(loop: Any, out: np.ndarray, x: np.ndarray, arrays: list[tuple[np.ndarray, np.ndarray]]) -> None:
    for weight, bias in arrays:
        run_parallel(loop, out, x, weight, bias)
