"""How many blocks the KV pool gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from roseinfer.llm.llm import LLM
from roseinfer.models import model_config
from roseinfer.planning import pool_size
from roseinfer.planning.pool_size import CPU_POOL_BYTES, pool_blocks
from roseinfer.planning.sizes import block_bytes


def test_the_pool_is_what_was_asked_for(tiny):
    one = block_bytes(tiny.config, 64, 4)
    assert LLM(tiny, kv_cache_memory_bytes=3 * one + 1).engine.blocks.num_blocks == 3
    assert LLM(tiny, max_num_seqs=5, max_model_len=65).engine.blocks.num_blocks == 5  # the last token is never cached
    assert LLM(tiny, max_num_seqs=5, max_model_len=66).engine.blocks.num_blocks == 10


GPT2_SMALL = model_config("random:gpt2")


def model_on(device: str) -> SimpleNamespace:
    return SimpleNamespace(config=GPT2_SMALL, dtype=torch.float32, device=torch.device(device))


def test_a_cpu_pool_has_a_gibibyte_at_most():
    assert pool_blocks(model_on("cpu"), 64, most=10**9) == CPU_POOL_BYTES // block_bytes(GPT2_SMALL, 64, 4)


@pytest.mark.parametrize("asked", [{"num_kvcache_blocks": 10**12}, {"kv_cache_memory_bytes": 10**20}])
def test_a_cpu_pool_that_is_larger_than_its_memory_is_refused_before_it_is_made(asked, monkeypatch):
    one = block_bytes(GPT2_SMALL, 64, 4)
    monkeypatch.setattr(pool_size, "cpu_memory", lambda: 70 * one)
    with pytest.raises(
        ValueError, match=f"^{[*asked][0]}.* blocks of {one:,} bytes, and cpu has {70 * one:,} bytes, for"
    ):
        pool_blocks(model_on("cpu"), 64, most=10**12, **asked)
    assert pool_blocks(model_on("cpu"), 64, most=1, num_kvcache_blocks=70) == 70
    monkeypatch.setattr(pool_size, "cpu_memory", lambda: None)  # the system does not tell
    assert pool_blocks(model_on("cpu"), 64, most=1, num_kvcache_blocks=71) == 71


def test_a_gpu_pool_has_a_share_of_what_is_left(monkeypatch):
    """A GPU of 100 blocks, 30 of them in use: half of it leaves 20."""
    one = block_bytes(GPT2_SMALL, 64, 4)
    monkeypatch.setattr(pool_size.torch.cuda, "mem_get_info", lambda device: (70 * one, 100 * one))
    on_gpu = model_on("cuda")
    assert pool_blocks(on_gpu, 64, most=10**9, gpu_memory_utilization=0.5) == 20
    assert pool_blocks(on_gpu, 64, most=10**9) == 60 and pool_blocks(on_gpu, 64, most=7) == 7
    assert pool_blocks(on_gpu, 64, most=10**9, step_bytes=5 * one) == 55, "steps need memory, too"
    for asked, source in (
        ({"num_kvcache_blocks": 71}, "num_kvcache_blocks=71"),
        ({"kv_cache_memory_bytes": 71 * one}, "kv_cache_memory_bytes"),
    ):
        said = f"^{source} asks for 71 blocks of {one:,} bytes, and cuda has {70 * one:,} bytes free, for at most 70 b"
        with pytest.raises(ValueError, match=said):
            pool_blocks(on_gpu, 64, most=10**9, **asked)
    assert pool_blocks(on_gpu, 64, most=1, num_kvcache_blocks=70) == 70
    with pytest.raises(ValueError, match="^gpu_memory_utilization=0.3 gives the KV cache 0 bytes: one block"):
        pool_blocks(on_gpu, 64, most=7, gpu_memory_utilization=0.3)
