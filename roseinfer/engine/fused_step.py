"""FusedStep: a step on a GPU in few launches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from roseinfer.kernels.fused_triton import Matrix, activate, add_norm, choose, embed, linear, matrix_of, rotate_in_place
from roseinfer.models import Attend, Layer, Model
from roseinfer.models.gpt2 import GPT2
from roseinfer.models.llama import Llama

from .batch import FEW_ROWS, Batch

NARROW = 2048  # hidden size; a wider model's matrices take so long to read that a launch beside them hardly counts
ALIGNED = 64  # rows of a matrix: with a count that no 64 divides, cuBLAS takes a kernel that is five times slower


def has_fused_step(model: Model) -> bool:
    """Whether a FusedStep computes what the model's modules do: it reads their weights, and calls none of its own."""
    if type(model) not in (GPT2, Llama):
        return False
    linears = [linear for p in model.parts for linear in (p.qkv, p.out, p.up, p.down)]
    plain = all(type(linear) is nn.Linear for linear in linears)
    return plain and all(parameter.is_contiguous() for parameter in model.parameters())


class FusedStep:
    """Computes a model's steps in few launches: with at most FEW_ROWS tokens five a layer, six where heads are turned.

    Where decodes and chunks may mix, it is one more: attention is two. With more tokens, for wide models, and unless
    they are in bfloat16, the products are the library's. Then a norm with the residual before it is one launch, and an
    activation another. few_rows: the most tokens of the first way; None for what is fastest. (In float16 a row times
    its norm's weights may be too large, since it is divided last.)
    """

    def __init__(self, model: Model, few_rows: int | None = None) -> None:
        assert isinstance(model, (GPT2, Llama))
        c, self.model, self.layers = model.config, model, model.parts
        self.head_counts = [c.num_heads, c.num_kv_heads, c.num_kv_heads]
        self.position_table = model.wpe.weight if isinstance(model, GPT2) else None
        self.rotation = model.rotation if isinstance(model, Llama) else None
        self.then = "gelu" if isinstance(model, GPT2) else "silu"
        self.output = aligned_rows(model.lm_head or model.token_embedding)
        if few_rows is None:
            few_rows = FEW_ROWS if c.hidden_size <= NARROW and model.dtype == torch.bfloat16 else 0
        self.few_rows = few_rows
        self.matrices = [matrices_of(layer) for layer in self.layers if few_rows]

    def __call__(self, batch: Batch, attend: Attend) -> tuple[Tensor, Tensor]:
        """Return logits [R, V] and greedy tokens [R] of the batch's sample_rows; NO_TOKEN where they are not finite.

        The tokens are written to its last_tokens.
        """
        logits = self.logits(batch, attend)
        return logits, choose(logits, batch.last_tokens[: len(logits)])

    def logits(self, batch: Batch, attend: Attend) -> Tensor:
        """Return logits [R, V] of the batch's sample_rows. Rows of the result do not lie one behind another."""
        tables = self.model.token_embedding.weight, self.position_table
        x = embed(batch.token_ids, batch.positions, *tables, batch.sources, batch.last_tokens)
        if len(x) <= self.few_rows:
            x, y = self.fused_layers(x, batch.positions, attend), None
        else:
            x, y = self.library_layers(x, batch.positions, attend)
        if not batch.is_decode:
            x, y = x[batch.sample_rows], y if y is None else y[batch.sample_rows]
        _, normed = add_norm(x, self.model.last_norm, y)
        return F.linear(normed, self.output)[:, : self.model.config.vocab_size]

    def fused_layers(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the hidden states [N, C] after the last layer, from products with all that stands around them."""
        for i, (to_qkv, to_out, to_up, to_down) in enumerate(self.matrices):
            x = linear(self.attended(i, linear(x, to_qkv), positions, attend), to_out, residual=x)
            x = linear(linear(x, to_up, then=self.then), to_down, residual=x)
        return x

    def library_layers(self, x: Tensor, positions: Tensor, attend: Attend) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states after the last layer as two tensors [N, C], which the next norm adds."""
        y = None
        for i, layer in enumerate(self.layers):
            x, normed = add_norm(x, layer.norm_1, y)
            y = layer.out(self.attended(i, layer.qkv(normed), positions, attend))
            x, normed = add_norm(x, layer.norm_2, y)
            y = layer.down(activate(layer.up(normed), self.then))
        return x, y

    def attended(self, layer: int, qkv: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the result of attention [N, H * D] from qkv [N, (H + 2 H_kv) * D], whose heads are turned first."""
        c, parts = self.model.config, self.layers[layer]
        heads = qkv.view(len(qkv), -1, c.head_dim)
        if self.rotation:
            table = self.rotation.table_for(qkv.device, qkv.dtype)
            rotate_in_place(heads, positions, table, c.num_heads, c.num_kv_heads, parts.q_norm, parts.k_norm)
        return attend(layer, *heads.split(self.head_counts, dim=1)).flatten(1)


def matrices_of(layer: Layer) -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """Return qkv, out, up and down of a layer, each with the norm before it."""
    return (
        matrix_of(layer.qkv, layer.norm_1), matrix_of(layer.out), matrix_of(layer.up, layer.norm_2),
        matrix_of(layer.down),
    )  # fmt: skip


def aligned_rows(output: Any) -> Tensor:
    """Return the matrix [V, C] with rows of zeros after it, up to a multiple of ALIGNED: a copy, unless there are none.

    The model's own stays where it is, because a graph that was captured before may have its address.
    """
    weight = output.weight.detach()
    num_more = -len(weight) % ALIGNED
    return F.pad(weight, (0, 0, 0, num_more)) if num_more else weight
