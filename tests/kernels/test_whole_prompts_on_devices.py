"""Whole prompts by PyTorch's attention: the same results, the same pool, and the sequences before them as ever."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from devices import CUDA, DTYPES

from roseinfer.kernels.attention import has_flash_attention
from roseinfer.kernels.flat_cases import flat_case, judge
from roseinfer.kernels.paged_reference import paged_attention_reference

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]

BATCHES = {
    "one": ([], (70,)),
    "several": ([], (17, 64, 33)),
    "beside decodes": ([(40, 1), (0, 1), (15, 1)], (48,)),
    "beside chunks and decodes": ([(20, 1), (7, 30), (0, 9)], (18, 50)),
}


@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (7, 64), (2, 80), (4, 128)])
@pytest.mark.parametrize(("before", "lengths"), BATCHES.values(), ids=BATCHES)
def test_whole_prompts_get_what_the_reference_computes(before, lengths, group, head_dim):
    sequences = [*before, *((0, n) for n in lengths)]
    judge_whole_prompts(lengths, flat_case(sequences, group=group, head_dim=head_dim))


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_whole_prompts_in_16_bits(dtype):
    before, lengths = BATCHES["beside chunks and decodes"]
    judge_whole_prompts(lengths, flat_case([*before, *((0, n) for n in lengths)], group=2, dtype=dtype))


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(("group", "head_dim"), [(1, 64), (7, 64), (2, 80), (4, 128)])
def test_flash_attention_computes_whole_prompts_on_a_gpu(group, head_dim, dtype, device):
    """From cuts of one tensor, as a product leaves them."""
    case = flat_case([(40, 1), (7, 30), (0, 1024), (0, 1500)], group=group, head_dim=head_dim, dtype=dtype)
    case = case._replace(**{name: x.to(device) for name, x in case._asdict().items()})
    operations = judge_whole_prompts((1024, 1500), case)
    is_flash = any("flash" in name for name in operations)
    assert is_flash == has_flash_attention(torch.device(device), dtype, head_dim), operations


def judge_whole_prompts(lengths, case):
    """Return the names of the operations, and of a GPU's kernels. The sequences before take the engine's kernel."""
    from roseinfer.kernels.paged_triton import TritonAttention
    from roseinfer.kernels.whole_prompts import attention_with_whole_prompts

    attention = TritonAttention(in_one_launch=True)
    whole = partial(attention_with_whole_prompts, attention, lengths)

    def returned(*tensors):
        out = torch.full_like(tensors[0], float("nan"))
        assert whole(*tensors, out) is out
        return out

    assert judge(returned, paged_attention_reference, case).verdict == "ok"
    assert hasattr(attention, "launches") == (len(lengths) < len(case.context_lens))
    with torch.profiler.profile() as profile:
        returned(*case.with_own_pool())
    return [event.key for event in profile.key_averages()]


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim"),
    [("cpu", torch.bfloat16, 64), ("cuda", torch.float32, 64), ("cuda", torch.float16, 288)],
)
def test_other_heads_go_through_the_engines_own_kernels(device, dtype, head_dim):
    assert not has_flash_attention(torch.device(device), dtype, head_dim)


@pytest.mark.parametrize(("capability", "has"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_flash_attention_is_there_from_ampere_on(monkeypatch, capability, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_flash_attention(torch.device("cuda"), torch.bfloat16, 128) == has
