"""WholeStep: the engine's forward on a CPU as one call of a compiled function."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from roseinfer.kernels.layer_table import COLUMNS, ENDS
from roseinfer.kernels.numba_calls import bits, run_parallel
from roseinfer.kernels.quantized_layout import GROUP
from roseinfer.kernels.whole_step import compiled_forward
from roseinfer.models import Layer, Model
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.linear import MatrixInTiles, QuantizedLinear
from roseinfer.models.llama import Llama

from .batch import Batch


def has_whole_step(model: Model) -> bool:
    """Whether the compiled function computes the model: its matrices are in tiles, those of the layers in one layout.

    It does not pad rows of x to pairs of bfloat16, or to whole groups for fewer bits.
    """
    if not isinstance(model, (GPT2, Llama)) or not isinstance(model.lm_head, MatrixInTiles):
        return False
    c = model.config
    widths = c.hidden_size, c.num_heads * c.head_dim, c.intermediate_size
    group = GROUP if isinstance(model.lm_head, QuantizedLinear) else 2
    is_whole = not any(width % group for width in widths)
    return is_whole and model.dtype in (torch.float32, torch.bfloat16) and len(_kinds(model)) == 1


def address_bytes(model: Model) -> int:
    """Return the bytes of a WholeStep's tables of addresses, 0 where there is no WholeStep."""
    return 8 * (model.config.num_layers * COLUMNS + ENDS) if has_whole_step(model) else 0


def whole_step_of(model: Model, memory: Tensor) -> WholeStep | None:
    """Return the model's WholeStep, None where operations are started one by one. memory: the pool's."""
    return WholeStep(model, memory) if has_whole_step(model) else None


def _kinds(model: Model) -> set[tuple[type[nn.Module], torch.dtype]]:
    """Return the layouts of the layers' matrices, and the types of their elements."""
    matrices = [matrix for layer in model.parts for matrix in (layer.qkv, layer.out, layer.up, layer.down)]
    return {(type(matrix), matrix.weight.dtype) for matrix in matrices}


class WholeStep:
    """Computes the forward of a model in one compiled call.

    model: one that has_whole_step. memory: the pool's.
    """

    def __init__(self, model: Model, memory: Tensor) -> None:
        assert isinstance(model, (GPT2, Llama)) and isinstance(model.lm_head, MatrixInTiles)
        c, table = model.config, model.token_embedding.weight.detach()
        nothing = torch.empty(0, c.hidden_size, dtype=model.dtype)
        self.held: list[Tensor] = []  # what the addresses point to
        rows = [self._row(layer) for layer in model.parts]
        if isinstance(model, Llama):
            tables = nothing, model.rotation.table_for(model.device, model.dtype)
        else:
            tables = model.wpe.weight.detach(), nothing
        matrices = model.parts[0].qkv.weight, model.lm_head.weight
        kinds = [weight.numpy().reshape(-1)[:0] for weight in matrices]
        self.held += table, *tables
        self.model_args = (
            *kinds, isinstance(model, Llama), np.float32(c.norm_eps), c.num_heads, c.intermediate_size,
            np.array(rows, np.int64), np.array([*self._norm(model.last_norm), *self._matrix(model.lm_head)], np.int64),
            bits(table), c.hidden_size, *map(bits, tables),
        )  # fmt: skip
        self.pool = bits(memory)
        self.forward = compiled_forward(*(kind.dtype for kind in kinds), bits(table).dtype, self.pool.dtype)
        self.vocab_size = c.vocab_size

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] float32 and greedy tokens [R] of the batch's sample_rows, and write K and V to the pool.

        A row that is not finite gets NO_TOKEN. K and V of all tokens are written.
        """
        logits = torch.empty(len(batch.sample_rows), self.vocab_size)
        tokens = batch.last_tokens[: len(batch.sample_rows)]
        inputs = (
            batch.token_ids, batch.positions, batch.slot_mapping, batch.query_start, batch.context_lens,
            batch.block_tables, batch.sample_rows,
        )  # fmt: skip
        arrays = (x.numpy() for x in inputs)
        run_parallel(self.forward, *self.model_args, *arrays, *self.pool, logits.numpy(), tokens.numpy())
        return logits, tokens

    def _row(self, layer: Layer) -> list[int]:
        """Return a layer's addresses: see the columns in kernels/layer_table.py."""
        norms = *self._norm(layer.norm_1), *self._norm(layer.norm_2)
        of_heads = self._norm(layer.q_norm)[0], self._norm(layer.k_norm)[0]
        matrices = layer.qkv, layer.out, layer.up, layer.down
        return [*norms, *of_heads, *(address for matrix in matrices for address in self._matrix(matrix))]

    def _norm(self, norm: Any) -> tuple[int, int]:
        return self._address(getattr(norm, "weight", None)), self._address(getattr(norm, "bias", None))

    def _matrix(self, matrix: Any) -> tuple[int, int]:
        return self._address(matrix.weight), self._address(matrix.bias)

    def _address(self, values: Tensor | None) -> int:
        if values is None or not values.numel():
            return 0
        self.held.append(values)
        return values.data_ptr()
