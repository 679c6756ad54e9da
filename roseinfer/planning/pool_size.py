"""How many blocks the KV pool gets: as it was told, or what its sequences could use, as far as the memory goes."""

from __future__ import annotations

import torch

from roseinfer.arguments import require_count
from roseinfer.hardware import cpu_memory
from roseinfer.models import Model
from roseinfer.sampling_params import is_number

from .sizes import block_bytes

CPU_POOL_BYTES = 2**30  # 1 GiB: a computer has other work, too. kv_cache_memory_bytes asks for another size
GPU_SHARE = 0.9


def most_blocks(max_model_len: int, block_size: int, max_num_seqs: int) -> int:
    """Return how many blocks max_num_seqs sequences of max_model_len tokens hold; a last token is never cached."""
    return max_num_seqs * -(-max(1, max_model_len - 1) // block_size)


def pool_blocks(
    model: Model,
    block_size: int,
    most: int,
    num_kvcache_blocks: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    gpu_memory_utilization: float | None = None,
    step_bytes: int = 0,
    draft: Model | None = None,
) -> int:
    """Return num_kvcache_blocks; or as many blocks as fit a number of bytes, `most` at most.

    The bytes are kv_cache_memory_bytes, or else on a CPU CPU_POOL_BYTES, and on a GPU the share gpu_memory_utilization
    (None: GPU_SHARE) of its memory less what is in use, by the weights for example, and less step_bytes. draft: a model
    with a pool of its own, of as many blocks.

    Raises ValueError for two of the three, a wrong value of one, a memory that no block fits, and more blocks than the
    device has memory for.
    """
    _check(model, num_kvcache_blocks, kv_cache_memory_bytes, gpu_memory_utilization)
    pools = [model] if draft is None else [model, draft]
    block = sum(block_bytes(one.config, block_size, one.dtype.itemsize) for one in pools)
    if num_kvcache_blocks is not None:
        _require_free(model.device, f"num_kvcache_blocks={num_kvcache_blocks}", num_kvcache_blocks, block)
        return num_kvcache_blocks
    if kv_cache_memory_bytes is not None:
        source, memory = "kv_cache_memory_bytes", kv_cache_memory_bytes
    elif model.device.type == "cuda":
        share = gpu_memory_utilization or GPU_SHARE
        source, memory = f"gpu_memory_utilization={share}", max(0, _left_of(model.device, share) - step_bytes)
    else:
        source, memory = "the default of a CPU", CPU_POOL_BYTES
    if memory < block:
        of_both = " in both pools" if draft else ""
        raise ValueError(
            f"{source} gives the KV cache {memory:,} bytes: one block of block_size={block_size} has {block:,}{of_both}"
        )
    num_blocks = min(memory // block, most)
    _require_free(model.device, source, num_blocks, block)
    return num_blocks


def _require_free(device: torch.device, source: str, num_blocks: int, block: int) -> None:
    """Raise ValueError, naming what asks for so many blocks, if there is no memory for them. block: bytes of one.

    On a GPU that is what is free. A CPU's blocks take memory later, one by one: all of its memory counts.
    """
    memory, how = cpu_memory(), ""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        memory, how = torch.cuda.mem_get_info(device)[0], " free"
    if memory is not None and num_blocks * block > memory:
        raise ValueError(
            f"{source} asks for {num_blocks:,} blocks of {block:,} bytes, and {device} has {memory:,} bytes{how}, for "
            f"at most {memory // block:,} blocks"
        )


def bytes_of_steps(model: Model, num_tokens: int, num_rows: int) -> int:
    """Return the memory that the largest steps take beside weights and pool, measured by running them.

    One has num_tokens tokens; the other chooses num_rows tokens, and keeps what it takes when it is captured. 0 on a
    CPU, whose memory is not shared out to the last byte.
    """
    if model.device.type != "cuda":
        return 0
    return sum(_peak_of_step(model, n, num_rows) for n in (num_tokens, num_rows))


@torch.inference_mode()
def _peak_of_step(model: Model, num_tokens: int, num_rows: int) -> int:
    torch.cuda.reset_peak_memory_stats(model.device)
    before = torch.cuda.memory_allocated(model.device)
    zeros = torch.zeros(num_tokens, dtype=torch.int64, device=model.device)
    hidden = model(zeros, zeros, lambda layer, q, k, v: q)  # attention writes to memory that is there already
    model.logits(hidden[:num_rows]).max(dim=-1)
    return torch.cuda.max_memory_allocated(model.device) - before


def _left_of(gpu: torch.device, share: float) -> int:
    """Return how many bytes of a share of a GPU's memory are unused now."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(gpu)
    return max(0, int(total * share) - (total - free))


def _check(model: Model, num_blocks: int | None, memory_bytes: int | None, gpu_share: float | None) -> None:
    counts = {"num_kvcache_blocks": num_blocks, "kv_cache_memory_bytes": memory_bytes}
    given = [name for name, value in (*counts.items(), ("gpu_memory_utilization", gpu_share)) if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} each size the KV cache: give one of them")
    for name in counts.keys() & given:
        require_count(name, counts[name], at_least=1)
    if gpu_share is None:
        return
    if not is_number(gpu_share) or not 0 < gpu_share <= 1:
        raise ValueError(f"gpu_memory_utilization must be a number above 0 and at most 1, got {gpu_share!r}")
    if model.device.type != "cuda":
        raise ValueError(
            f"gpu_memory_utilization={gpu_share} is for a GPU, and the model is on {str(model.device)!r}: give "
            "num_kvcache_blocks or kv_cache_memory_bytes"
        )
