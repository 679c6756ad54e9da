"""Stage 07, Triton paged attention: the loop over the blocks of a sequence becomes one kernel.

What was slow:  stage 05's attention needs no gather, but each step of its online softmax is a PyTorch operation of its
                own: about twenty launches for each block of the longest sequence, in every layer.
The change:     one kernel launch a layer. A program serves one sequence and the query heads that share a KV head: it
                loads each cached K and V of that head once, and keeps the running softmax in registers.
What it gives:  one launch a layer for any length and batch, only the result is written, and no padding is read: a
                program stops at its own sequence's last token.
Where it loses: one program walks a whole sequence, so a small batch with a long context leaves most of a GPU idle. All
                products are sums in fp32, not tensor cores. Without a GPU it runs in Triton's interpreter: exact, and
                far slower than the reference.

Triton: Tillet et al., 2019. Online softmax as in stage 05.
"""

from __future__ import annotations

import torch
from torch import Tensor

from roseinfer import triton_mode
from roseinfer.models import Model

from .s06_block_table_cache import BlockTableCache, paged_attention_reference

__all__ = ["TritonPaged", "paged_attention_reference", "paged_attention_triton", "paged_decode_kernel"]
tl = triton_mode.language()

# Values of a tile [heads, group, tokens, head_dim] in a compiled program. 4 warps hold them in 32 registers a thread.
TILE_VALUES = 4096


@triton_mode.jit
def paged_decode_kernel(
    out, q, k, v, k_cache, v_cache, block_table, context_lens,
    scale, num_kv_heads,
    q_token, q_head, k_token, k_head, v_token, v_head, cache_block, cache_slot, cache_head,  # strides, in elements
    table_row, table_column,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A program: sequence program_id(0), HEADS KV heads from program_id(1) * HEADS on, GROUP query heads on each."""
    seq = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    group = tl.arange(0, GROUP_PAD)
    dim = tl.arange(0, DIM_PAD)
    real_kv = (head < num_kv_heads)[:, None] & (dim < HEAD_DIM)[None, :]  # [HEADS, DIM]
    real_q = real_kv[:, None, :] & (group < GROUP)[None, :, None]  # [HEADS, GROUP, DIM]
    query_head = head[:, None] * GROUP + group[None, :]

    # Upcast after every load: sums are fp32, and the interpreter adds bf16 wrongly.
    q_at = seq * q_token + query_head[:, :, None] * q_head + dim[None, None, :]
    query = tl.load(q + q_at, mask=real_q, other=0.0).to(tl.float32) * scale
    k_at = seq * k_token + head[:, None] * k_head + dim[None, :]
    v_at = seq * v_token + head[:, None] * v_head + dim[None, :]
    new_k = tl.load(k + k_at, mask=real_kv, other=0.0).to(tl.float32)
    new_v = tl.load(v + v_at, mask=real_kv, other=0.0).to(tl.float32)

    # The new token is the softmax's first element: its weight is exp(0).
    top = tl.sum(query * new_k[:, None, :], axis=2)  # [HEADS, GROUP]: the largest score so far
    total = tl.full([HEADS, GROUP_PAD], 1.0, tl.float32)
    acc = tl.zeros([HEADS, GROUP_PAD, DIM_PAD], tl.float32) + new_v[:, None, :]

    num_cached = tl.load(context_lens + seq)
    for start in range(0, num_cached, TILE):
        block = tl.load(block_table + seq * table_row + start // BLOCK_SIZE * table_column).to(tl.int64)
        token = start + tl.arange(0, TILE)
        cached = token < num_cached
        at = block * cache_block + (token % BLOCK_SIZE)[None, :, None] * cache_slot
        at = at + head[:, None, None] * cache_head + dim[None, None, :]  # [HEADS, TILE, DIM]
        readable = real_kv[:, None, :] & cached[None, :, None]
        keys = tl.load(k_cache + at, mask=readable, other=0.0).to(tl.float32)
        values = tl.load(v_cache + at, mask=readable, other=0.0).to(tl.float32)

        scores = tl.sum(query[:, :, None, :] * keys[:, None, :, :], axis=3)  # [HEADS, GROUP, TILE]
        scores = tl.where(cached[None, None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=2))
        weights = tl.exp(scores - new_top[:, :, None])
        shrink = tl.exp(top - new_top)  # rescales the sums, which are relative to the old top
        acc = acc * shrink[:, :, None] + tl.sum(weights[:, :, :, None] * values[:, None, :, :], axis=2)
        total = total * shrink + tl.sum(weights, axis=2)
        top = new_top

    out_at = (seq * num_kv_heads * GROUP + query_head)[:, :, None] * HEAD_DIM + dim[None, None, :]
    tl.store(out + out_at, (acc / total[:, :, None]).to(out.dtype.element_ty), mask=real_q)


def program_shape(num_kv_heads: int, group: int, head_dim: int, block_size: int, interpreted: bool) -> dict[str, int]:
    """The kernel's constexprs and warps. Compiled: a program a KV head, and tiles that fit registers. Interpreted,
    where an operation costs the same whatever its size: all heads in one program, and whole blocks."""
    group_pad, dim_pad = power_of_two(group), power_of_two(head_dim)
    token_values = group_pad * dim_pad
    tile = block_size if interpreted else min(block_size, max(16, TILE_VALUES // token_values))
    return {
        "HEADS": power_of_two(num_kv_heads) if interpreted else 1,
        "GROUP": group, "GROUP_PAD": group_pad, "HEAD_DIM": head_dim, "DIM_PAD": dim_pad,
        "BLOCK_SIZE": block_size, "TILE": tile, "num_warps": 4 if tile * token_values <= 2 * TILE_VALUES else 8,
    }  # fmt: skip


def power_of_two(n: int) -> int:
    """The least power of two that is not below n; the sides of a Triton tile are powers of two."""
    return 1 << (n - 1).bit_length()


def paged_attention_triton(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor
) -> Tensor:
    """As paged_attention_reference, in one launch.

    block_size must be a power of two, head_dim contiguous, and k_cache and v_cache laid out alike (ValueError). Raises
    triton_mode.TritonUnavailable where no kernel can run.
    """
    triton_mode.require_triton(q.device.type)
    check_layout(q, k, v, k_cache, v_cache)
    batch_size, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    interpreted = triton_mode.MODE == "interpret"
    shape = program_shape(num_kv_heads, num_heads // num_kv_heads, head_dim, block_size, interpreted)
    out = torch.empty((batch_size, num_heads, head_dim), dtype=q.dtype, device=q.device)
    grid = (batch_size, -(-num_kv_heads // shape["HEADS"]))
    paged_decode_kernel[grid](
        out, q, k, v, k_cache, v_cache, block_table, context_lens, head_dim**-0.5, num_kv_heads,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *block_table.stride(), **shape,
    )  # fmt: skip
    return out


def check_layout(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    if k_cache.size(1) != power_of_two(k_cache.size(1)):
        raise ValueError(f"block_size must be a power of two for this kernel, got {k_cache.size(1)}")
    if k_cache.stride() != v_cache.stride():
        raise ValueError(f"k_cache and v_cache must have equal strides, got {k_cache.stride()}, {v_cache.stride()}")
    for name, tensor in (("q", q), ("k", k), ("v", v), ("k_cache", k_cache)):
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, got strides {tensor.stride()}")


class TritonPaged(BlockTableCache):
    """BlockTableCache with its attention in one kernel. Raises TritonUnavailable where none can run."""

    name = "s07_triton_paged"
    attention = staticmethod(paged_attention_triton)

    def __init__(self, model: Model, *, num_blocks: int, block_size: int = 64, max_num_seqs: int = 64) -> None:
        triton_mode.require_triton(model.device.type)
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=max_num_seqs)
        if block_size != power_of_two(block_size):  # raised here too, not only in the first step
            raise ValueError(f"block_size must be a power of two for {self.name}, got {block_size}")

    @classmethod
    def why_untimed(cls, device: torch.device) -> str | None:
        if triton_mode.MODE == "interpret" and not triton_mode.unavailable():
            return "its kernel runs in Triton's interpreter here, whose times say nothing"
        return triton_mode.unavailable(device.type)
