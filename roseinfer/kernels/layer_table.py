"""The weights of all layers as a table of addresses: a row for each layer, a column for each of its matrices and norms.

A compiled function that takes its weights like this serves any number of layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from . import quantized_numba, stored_numba  # noqa: F401  # both add their products
from .quantized_layout import LAYOUTS
from .tiled_numba import TILE, factor, multiply_tiled

# A norm has two columns: the addresses of its weights and of its bias. A matrix has two: of its weights and of its
# bias. 0 for what a layer does not have.
NORM_1, NORM_2, Q_NORM, K_NORM, QKV, OUT, UP, DOWN, COLUMNS = 0, 2, 4, 5, 6, 8, 10, 12, 14
LAST_NORM, OUTPUT, ENDS = 0, 2, 4  # of the table for what comes after the layers


@intrinsic
def pointer_at(typing: Any, address: types.Integer) -> tuple[Any, Callable]:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit
def floats_at(address, length):
    return carray(pointer_at(address), (length,), np.float32)


@njit
def values_at(address, length, like):
    """Return values of the model's own type, such as a norm's weights."""
    return carray(pointer_at(address), (length,), like.dtype)


def weights_at(address, num_rows, depth, kind):
    """Return W of that shape as its product reads it. It is only ever compiled, one version for each `kind`."""
    raise NotImplementedError


@overload(weights_at, inline="always")
def _weights_at(address, num_rows, depth, kind):
    if kind.dtype in LAYOUTS:
        layout, item = LAYOUTS[kind.dtype], kind.dtype.bitwidth // 8
        head, group, per_group = layout.head // item, layout.group, layout.group_bytes // item
        return lambda address, num_rows, depth, kind: carray(
            pointer_at(address), ((num_rows + TILE - 1) // TILE, head + depth // group * per_group), kind.dtype
        )
    if kind.dtype == types.int32:
        return lambda address, num_rows, depth, kind: carray(
            pointer_at(address), ((num_rows + TILE - 1) // TILE, depth // 2, TILE), np.int32
        )
    return lambda address, num_rows, depth, kind: carray(
        pointer_at(address), ((num_rows + TILE - 1) // TILE, depth, TILE), np.float32
    )


@njit
def multiply(out, x, layer, matrix, then, kind):
    """Run multiply_tiled with the matrix whose columns in `layer` begin at `matrix`."""
    w = weights_at(layer[matrix], out.shape[1], x.shape[1], kind)
    bias = floats_at(layer[matrix + 1], out.shape[1] if layer[matrix + 1] else 0)
    multiply_tiled(out, factor(x, kind), w, bias, then)
