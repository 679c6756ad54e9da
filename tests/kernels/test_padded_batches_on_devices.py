"""Attention over batches that are filled up: padding is one sequence of any length, and those behind it are empty."""

from __future__ import annotations

import pytest
import torch

from roseinfer.kernels.flat_cases import FlatCase, different, flat_case
from roseinfer.kernels.paged_numba import paged_attention_numba
from roseinfer.kernels.paged_reference import paged_attention_reference
from roseinfer.kernels.paged_triton import TritonAttention

pytestmark = pytest.mark.slow

BATCHES = {
    "verify": [(20, 1), (30, 4), (0, 2), (16, 1)],
    "chunk": [(5, 1), (200, 1), (0, 23), (17, 9)],
    "nothing": [],
}


def filled_up(case: FlatCase, num_padding: int, num_empty: int) -> FlatCase:
    """Pad a case as engine/batch.py does: tokens in the dummy block, of which nothing is cached."""
    device, size, dummy = case.q.device, case.block_size, len(case.k_cache) - 1
    num_tokens = len(case.q) + num_padding

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return case._replace(
        **{
            name: torch.cat([x, x.new_ones(num_padding, *x.shape[1:])]) for name in "qkv" for x in [getattr(case, name)]
        },
        slot_mapping=torch.cat([case.slot_mapping, ints(*(dummy * size + i % size for i in range(num_padding)))]),
        query_start=torch.cat([case.query_start, ints(*[num_tokens] * (1 + num_empty))]),
        context_lens=torch.cat([case.context_lens, ints(num_padding, *[0] * num_empty)]),
        block_tables=torch.cat([case.block_tables, case.block_tables.new_full((1 + num_empty, 16), dummy)]),
    )


@pytest.mark.needs_triton
@pytest.mark.parametrize(
    "attention", [paged_attention_numba, TritonAttention(in_one_launch=True)], ids=["numba", "triton"]
)
@pytest.mark.parametrize("group", [1, 7])
@pytest.mark.parametrize("name", BATCHES)
def test_padding_changes_nothing_of_the_others(name, group, attention, device):
    device = "cpu" if attention is paged_attention_numba else device
    case = flat_case(BATCHES[name], group=group, spare_columns=16, device=device)
    case = case._replace(block_tables=case.block_tables[:, :16])
    for num_padding, num_empty in ((0, 2), (1, 0), (41, 3)):
        if len(case.q) + num_padding:
            padded = filled_up(case, num_padding, num_empty).with_own_pool()
            got = attention(*padded, max_query_len=64)[: len(case.q)]
            wanted = case.with_own_pool()
            torch.testing.assert_close(got, paged_attention_reference(*wanted), atol=2e-5, rtol=1e-5)
            for cache in ("k_cache", "v_cache"):
                assert not different(getattr(padded, cache), getattr(wanted, cache), pool=True)
