"""KVPool: the memory that it takes."""

from __future__ import annotations

import ctypes
import mmap
import sys
from copy import deepcopy

import pytest
import torch
from oracles import model_of
from torch import Tensor

from roseinfer.engine.kv_pool import KVPool


def resident(memory: Tensor) -> int:
    """Bytes of its pages that are in memory."""
    pages = (ctypes.c_ubyte * -(-memory.nbytes // mmap.PAGESIZE))()
    failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.nbytes), pages)
    assert not failed
    return mmap.PAGESIZE * sum(page & 1 for page in pages)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells which pages are in memory")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_block_takes_memory_before_it_is_written(dtype):
    pool = KVPool(deepcopy(model_of("gpt2")).to(dtype), 100_000, 16)
    assert resident(pool.memory) == 0
    pool.layers[0][0][0] = 1
    assert 0 < resident(pool.memory) < pool.memory.nbytes / 2
    assert pool.memory.dtype == dtype and not pool.memory[:, :, 1:3].any()


@pytest.mark.parametrize("num_blocks", [2**45, 2**70])
def test_more_blocks_than_there_is_memory_for_are_refused(num_blocks):
    with pytest.raises(ValueError, match=f"^num_blocks={num_blocks}: no memory here for a KV pool of "):
        KVPool(model_of("gpt2"), num_blocks, 16)


def test_a_system_without_the_flags_of_a_mapping_has_a_pool_of_zeros(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    monkeypatch.delattr(mmap, "MAP_ANONYMOUS")
    pool = KVPool(model_of("gpt2"), 3, 16)
    assert not pool.memory.any()
    pool.memory.fill_(1)
    assert pool.memory.all()
