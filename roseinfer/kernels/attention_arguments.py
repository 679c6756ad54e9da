"""Checks of the arguments with which paged_triton's kernels would access what they must not, or leave tokens out."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention_tilings import power_of_two


def check_tensors(
    q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor, query_start: Tensor,
    context_lens: Tensor, block_tables: Tensor, out: Tensor,
) -> None:  # fmt: skip
    """Raise ValueError for tensors with which a kernel would access what it must not; no value is looked at."""
    num_tokens, num_heads, head_dim = q.shape
    num_blocks, num_kv_heads, block_size, _ = k_cache.shape
    num_seqs = len(block_tables)
    if block_size != power_of_two(block_size):  # so the compiler sees which neighbours share a block
        raise ValueError(f"block_size must be a power of two for this kernel, got {block_size}")
    if num_heads % num_kv_heads:
        raise ValueError(f"q must have a multiple of the {num_kv_heads} KV heads, got {num_heads} heads")
    shapes = {
        "k": (k, (num_tokens, num_kv_heads, head_dim)), "v": (v, (num_tokens, num_kv_heads, head_dim)),
        "k_cache": (k_cache, (num_blocks, num_kv_heads, block_size, head_dim)), "v_cache": (v_cache, k_cache.shape),
        "out": (out, q.shape), "slot_mapping": (slot_mapping, (num_tokens,)),
        "query_start": (query_start, (num_seqs + 1,)), "context_lens": (context_lens, (num_seqs,)),
    }  # fmt: skip
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"{name} must be of shape {tuple(shape)}, got {tuple(tensor.shape)}")
    for name, tensor in {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "out": out}.items():
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name} must be {q.dtype}, as q is, got {tensor.dtype}")
    indices = {"slot_mapping": slot_mapping, "query_start": query_start, "context_lens": context_lens}
    for name, tensor in {**indices, "block_tables": block_tables}.items():
        if tensor.dtype != torch.int32:
            raise ValueError(f"{name} must be torch.int32, got {tensor.dtype}")
    for name, tensor in {"k_cache": k_cache, "v_cache": v_cache, **indices}.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")
    for name, tensor in {"q": q, "k": k, "v": v, "out": out, "block_tables": block_tables}.items():
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be contiguous in its last dimension, got strides {tensor.stride()}")


def check_max_query_len(max_query_len: int, num_tokens: int, num_seqs: int) -> None:
    """Raise ValueError for a number with which a launch would leave tokens out."""
    least = 1 if num_tokens == num_seqs else 2
    if max_query_len < least:
        allowed = f"at least {least} for {num_tokens} tokens of {num_seqs} sequences"
        raise ValueError(f"max_query_len must be {allowed}, got {max_query_len}")
