"""Stage 23, few launches: a matrix product of a decode step also computes the norm, GELU and residual beside it.

What was slow:  launches. Stage 13 replays a step as one graph, but a GPU still starts each kernel in it, and waits for
                the end of the one before. A norm, a GELU or a residual moves next to no bytes, and takes nearly as long
                as a product that reads a whole matrix.
The change:     one kernel for every product. It normalises its input in front of the product. Behind it, before the
                result is written, it adds the bias, applies GELU and adds the residual.
What it gives:  a layer is four of these launches and attention. What was between two products stays in registers: it is
                neither written nor read again.
Where it loses: large batches: every program computes the norm of all its rows again, and a library's product keeps more
                numbers in registers and the tensor cores busier. It is written for GPT-2: other models run as in stage
                13, and so do prompts. Without a GPU it runs in Triton's interpreter: exact, and far slower.

vLLM fuses a norm with the residual before it by hand, and lets torch.compile fuse the rest. A megakernel goes on to the
end: "Look Ma, No Bubbles!" (Hazy Research, 2025) has the whole forward in one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from roseinfer import triton_mode
from roseinfer.graphs.operation import operation
from roseinfer.models import Model
from roseinfer.models.gpt2 import GPT2

from .s13_graphs import Graphs

tl = triton_mode.language()


@triton_mode.jit
def row_statistics(x, row, num_rows, eps, WIDTH: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr):
    """LayerNorm's two numbers for each of ROWS rows of x: its mean, and 1 / its standard deviation."""
    sums, squares = tl.zeros([ROWS, CHUNK], tl.float32), tl.zeros([ROWS, CHUNK], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        real = (row < num_rows)[:, None] & (k < WIDTH)[None, :]
        sums += tl.load(x + row[:, None] * WIDTH + k[None, :], mask=real, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=1) / WIDTH
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        real = (row < num_rows)[:, None] & (k < WIDTH)[None, :]
        values = tl.load(x + row[:, None] * WIDTH + k[None, :], mask=real, other=0.0).to(tl.float32)
        centred = tl.where(real, values - mean[:, None], 0.0)
        squares += centred * centred
    return mean, tl.rsqrt(tl.sum(squares, axis=1) / WIDTH + eps)


@triton_mode.jit
def linear_kernel(
    out, x, weight, bias, norm_weight, norm_bias, residual, num_rows, num_out, eps,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr,
    GELU: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A program: COLUMNS columns of the result, from program_id(0) * COLUMNS on, for ROWS rows, by program_id(1).

    x is [num_rows, WIDTH], weight [num_out, WIDTH]; all are contiguous. None for an argument leaves its part out.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real_row, real_column = row < num_rows, column < num_out
    # 1. In front: what LayerNorm subtracts from a row, and what it multiplies the row by.
    if norm_weight is not None:
        mean, scale = row_statistics(x, row, num_rows, eps, WIDTH, ROWS, CHUNK)
    # 2. The product, a chunk of the width at a time: each value of the weight is loaded by one program alone.
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, WIDTH, CHUNK):
        k = start + tl.arange(0, CHUNK)
        real = k < WIDTH
        at = row[:, None] * WIDTH + k[None, :]
        values = tl.load(x + at, mask=real_row[:, None] & real[None, :], other=0.0)
        if norm_weight is not None:
            gain = tl.load(norm_weight + k, mask=real, other=0.0).to(tl.float32)
            shift = tl.load(norm_bias + k, mask=real, other=0.0).to(tl.float32)
            values = (values.to(tl.float32) - mean[:, None]) * scale[:, None] * gain[None, :] + shift[None, :]
        at = column[None, :].to(tl.int64) * WIDTH + k[:, None]
        matrix = tl.load(weight + at, mask=real_column[None, :] & real[:, None], other=0.0)
        if INTERPRETED:  # it multiplies bf16 wrongly
            matrix = matrix.to(tl.float32)
        sums = tl.dot(values.to(matrix.dtype), matrix, sums, input_precision="ieee")
    # 3. Behind: bias, GELU and residual, while the sums are in registers.
    if bias is not None:
        sums += tl.load(bias + column, mask=real_column, other=0.0).to(tl.float32)[None, :]
    if GELU:  # z * sigmoid(2 a) is z * (1 + tanh(a)) / 2
        twice = 1.5957691216 * (sums + 0.044715 * sums * sums * sums)
        sums = sums * tl.sigmoid(tl.maximum(twice, -80.0))  # exp(80) is about the largest that a float32 holds
    at = row[:, None] * num_out + column[None, :]
    real = real_row[:, None] & real_column[None, :]
    if residual is not None:
        sums += tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=real)


def program_shape(num_rows: int, num_out: int, width: int, interpreted: bool) -> dict[str, int]:
    """The kernel's tiles. Compiled: few columns a program, so that there are enough programs to keep a GPU reading.
    Interpreted, where an operation costs the same whatever its size: as few programs as possible."""
    rows = min(64, max(16, power_of_two(num_rows)))  # 16: the least that tensor cores multiply
    if interpreted:
        return {"ROWS": rows, "COLUMNS": min(2048, power_of_two(num_out)), "CHUNK": min(512, power_of_two(width))}
    return {"ROWS": rows, "COLUMNS": 16, "CHUNK": 128 if rows <= 32 else 64}


def power_of_two(n: int) -> int:
    """The least power of two that is not below n, and at least 16; the sides of a Triton tile are powers of two."""
    return max(16, 1 << (n - 1).bit_length())


@operation
def fused_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: tuple[Tensor, Tensor, float] | None = None,
    residual: Tensor | None = None,
    gelu: bool = False,
) -> Tensor:
    """norm(x) [N, K] @ weight.T + bias [N, M], then GELU, then + residual [N, M], in one launch.

    norm: LayerNorm's weight, bias and epsilon. All tensors are contiguous.
    """
    num_rows, width = x.shape
    num_out = len(weight)
    interpreted = triton_mode.MODE == "interpret"
    shape = program_shape(num_rows, num_out, width, interpreted)
    # The interpreter cuts bf16 off where a GPU rounds it, so there PyTorch rounds.
    out = torch.empty(num_rows, num_out, dtype=torch.float32 if interpreted else x.dtype, device=x.device)
    grid = -(-num_out // shape["COLUMNS"]), -(-num_rows // shape["ROWS"])
    norm_weight, norm_bias, eps = norm or (None, None, 0.0)
    linear_kernel[grid](
        out, x, weight, bias, norm_weight, norm_bias, residual, num_rows, num_out, eps,
        WIDTH=width, GELU=gelu, INTERPRETED=interpreted, **shape,
    )  # fmt: skip
    return out.to(x.dtype)


class FewLaunches(Graphs):
    """Graphs whose decode step has one launch for each product of GPT-2. Raises TritonUnavailable where none can run.

    Other models, and all prompts, run as in stage 13.
    """

    name = "s23_few_launches"

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        triton_mode.require_triton(model.device.type)
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        self.row_major = model  # its matrices as they are, which stage 12 packs on a CPU

    @classmethod
    def why_untimed(cls, device: torch.device) -> str | None:
        if triton_mode.MODE == "interpret" and not triton_mode.unavailable():
            return "its kernel runs in Triton's interpreter here, whose times say nothing"
        return triton_mode.unavailable(device.type)

    def static_step(self, bucket: int) -> Callable[[], tuple[Tensor, Tensor]]:
        inputs, c, model = self.inputs_on_device, self.config, self.row_major
        if not isinstance(model, GPT2):
            return super().static_step(bucket)
        blocks: Any = model.h
        token_ids, positions = inputs["token_ids"][:bucket], inputs["positions"][:bucket]
        where = (
            inputs["slot_mapping"][:bucket], inputs["query_start"][: bucket + 1],
            inputs["context_lens"][:bucket], inputs["block_tables"][:bucket],
        )  # fmt: skip
        attended = self.attended[:bucket]

        def step() -> tuple[Tensor, Tensor]:
            x = model.wte(token_ids) + model.wpe(positions)
            for layer, block in enumerate(blocks):
                heads = fused_linear(x, *matrix(block.attn.c_attn), norm=norm(block.ln_1)).view(bucket, -1, c.head_dim)
                q, k, v = heads.split((c.num_heads, c.num_kv_heads, c.num_kv_heads), dim=1)
                k_cache, v_cache = self.pool[:, layer]
                self.attention(q, k, v, k_cache, v_cache, *where, attended)
                x = fused_linear(attended.flatten(1), *matrix(block.attn.c_proj), residual=x)
                up = fused_linear(x, *matrix(block.mlp.c_fc), norm=norm(block.ln_2), gelu=True)
                x = fused_linear(up, *matrix(block.mlp.c_proj), residual=x)
            logits = fused_linear(x, *matrix(model.lm_head or model.wte), norm=norm(model.ln_f))
            largest, tokens = logits.max(dim=-1)  # the first of equal ones
            return logits, torch.where(largest.isfinite(), tokens, -1)  # -1 for a row with NaN or infinity

        return step


def matrix(layer: nn.Linear | nn.Embedding) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of a product; an embedding table that is the output matrix has no bias."""
    return layer.weight, getattr(layer, "bias", None)


def norm(layer: nn.LayerNorm) -> tuple[Tensor, Tensor, float]:
    """Weight, bias and epsilon, as `fused_linear` takes them."""
    return layer.weight, layer.bias, layer.eps
