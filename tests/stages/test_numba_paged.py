"""Stage 09 beyond what every paged stage promises: its loops, what is compiled of them, threads, what is refused."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from fresh_python import printed_by
from numba.core.caching import CacheImpl

from roseinfer.generate import begin, decode_step
from roseinfer.kernels.cases import paged_case
from roseinfer.profiling import trace_once
from roseinfer.sequence import SamplingParams
from stages.s05_block_table import paged_attention_reference
from stages.s09_numba_paged import SPAN, NumbaPaged, compiled, paged_attention_numba, paged_decode_loop

pytestmark = pytest.mark.slow


LENGTHS = [0, 1, 15, 16, 17, 46]


def assert_right(got, case):
    torch.testing.assert_close(got, paged_attention_reference(*case), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("block_size", [1, 3, 5, 128])
def test_blocks_of_any_size(block_size):
    case = paged_case(LENGTHS, group=3, block_size=block_size)
    assert_right(paged_attention_numba(*case), case)


def test_the_loop_is_plain_python_too():
    case = paged_case(LENGTHS, group=2, head_dim=8)
    out = torch.empty(case.q.shape)
    paged_decode_loop(out.numpy(), *(x.numpy() for x in case), np.float32(8**-0.5))
    assert_right(out, case)


@pytest.mark.parametrize("values", [1e-7, 6e-5, 1.0, 6e4], ids=["without a leading 1", "smallest", "one", "largest"])
def test_fp16_of_any_size_is_read_as_it_is(values):
    case = paged_case([40], dtype=torch.float16)
    case.v_cache.copy_(case.v_cache.sign() * values)
    got = paged_attention_numba(*case)
    torch.testing.assert_close(got, paged_attention_reference(*case), atol=2e-8 + values / 1e3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_nan_that_the_model_made_shows(dtype):
    """fastmath=True would allow the compiler to take for granted that there is none."""
    case = paged_case([20, 20], dtype=dtype)
    case.k_cache[case.block_table[1, 0].item(), 3] = float("nan")
    got = paged_attention_numba(*case)
    assert got[0].isfinite().all() and got[1].isnan().all()


def test_a_step_has_one_labelled_call_a_layer(small):
    stage = NumbaPaged(small, num_blocks=8)
    seqs = begin(stage, [[5] * 70, [6] * 3], SamplingParams(max_tokens=4))
    trace = trace_once(lambda: decode_step(stage, seqs))
    spans = trace.sql(f"SELECT COUNT(*) AS n FROM slice WHERE name = '{SPAN}' AND cat = 'user_annotation'")
    assert spans["n"][0] == small.config.num_layers


def test_every_dtype_is_compiled_once_whatever_the_strides():
    compiled.cache_clear()
    for lengths in ([5], [5, 20]):  # a batch of one is contiguous, a larger one is not
        paged_attention_numba(*paged_case(lengths))
    assert compiled.cache_info().misses == 1 and len(compiled(torch.float32).signatures) == 1


def test_the_stage_is_compiled_before_its_first_step(small):
    compiled.cache_clear()
    NumbaPaged(small, num_blocks=4)
    assert compiled.cache_info().currsize == 1


def test_threads_are_pytorchs_and_stay_so():
    """Numba tells OpenMP, which PyTorch asks as well, how many threads there are."""
    code = """
import torch
torch.set_num_threads(1)
from roseinfer.kernels.cases import paged_case
from stages.s09_numba_paged import paged_attention_numba
import numba
for threads in (1, 2, 1):
    torch.set_num_threads(threads)
    paged_attention_numba(*paged_case([20]))
    print(torch.get_num_threads(), numba.get_num_threads())
"""
    assert printed_by(code, NUMBA_NUM_THREADS="2") == "1 1\n2 2\n1 1\n"


def test_numbas_simplest_threads_stand_several_callers():
    code = """
import numba, torch
from concurrent.futures import ThreadPoolExecutor
from roseinfer.kernels.cases import paged_case
from stages.s09_numba_paged import paged_attention_numba, paged_attention_reference
case = paged_case([300, 7])
with ThreadPoolExecutor(4) as pool:
    done = list(pool.map(lambda _: paged_attention_numba(*case), range(200)))
right = paged_attention_reference(*case)
print(numba.threading_layer(), all(torch.allclose(out, right, atol=2e-6) for out in done))
"""
    assert printed_by(code, NUMBA_NUM_THREADS="2", NUMBA_THREADING_LAYER="workqueue") == "workqueue True\n"


def test_without_a_folder_to_keep_it_in_it_is_compiled_all_the_same(monkeypatch):
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache function"):
        numba.njit(cache=True)(paged_decode_loop)
    kernel = compiled.__wrapped__(torch.float32)
    monkeypatch.setattr("stages.s09_numba_paged.compiled", lambda dtype: kernel)
    case = paged_case(LENGTHS)
    assert_right(paged_attention_numba(*case), case)


def test_what_the_loops_cannot_read_is_refused():
    case = paged_case([3])
    with pytest.raises(ValueError, match="k_cache and v_cache must be contiguous, got strides"):
        paged_attention_numba(*case._replace(k_cache=case.k_cache.transpose(1, 2)))
    with pytest.raises(ValueError, match="k_cache and v_cache must be contiguous, got strides"):
        paged_attention_numba(*case._replace(v_cache=case.v_cache.transpose(1, 2)))
    with pytest.raises(ValueError, match="float32, bfloat16 or float16 for these loops, got torch.float64"):
        paged_attention_numba(*(x.double() if x.is_floating_point() else x for x in case))


def test_another_device_is_refused_in_one_line():
    elsewhere = [x.to("meta") for x in paged_case([3])]
    with pytest.raises(ValueError, match="compiled for a CPU, the tensors are on meta: s07_triton_paged runs there"):
        paged_attention_numba(*elsewhere)
    assert NumbaPaged.why_untimed(torch.device("cpu")) is None
    assert "on cuda" in NumbaPaged.why_untimed(torch.device("cuda"))
