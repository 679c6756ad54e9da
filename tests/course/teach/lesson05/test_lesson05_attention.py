"""Lesson 05: a wrong attention is told what is wrong, and a right one passes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import changed, right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import BlockTable

pytestmark = pytest.mark.slow


# 05.3


def paged(changes=None):
    return solution("05.3", changes, torch=torch, F=F, BlockTable=BlockTable)


MyPaged = paged()
OWN = ": -(-n // block_size)]"


def with_attention(attend):
    return changed(BlockTable, attention=staticmethod(attend))


def padded(q, k, v, k_cache, v_cache, block_table, context_lens):
    """One batch for all, as stage 04 makes it."""
    tokens = torch.arange(int(context_lens.max()) + 1)
    own = tokens < context_lens[:, None]
    dense = []
    for cache, new in ((k_cache, k), (v_cache, v)):
        reachable = torch.cat([block_table, torch.zeros_like(block_table[:, :1])], dim=1)
        batch = cache[reachable].flatten(1, 2)[:, : len(tokens)]
        batch = batch.masked_fill(~own[..., None, None], 0.0)
        batch[torch.arange(len(q)), context_lens.long()] = new
        dense.append(batch.transpose(1, 2))
    mask = (tokens <= context_lens[:, None])[:, None, None]
    return F.scaled_dot_product_attention(q.unsqueeze(2), *dense, attn_mask=mask, enable_gqa=True).squeeze(2)


def in_fp32(*arguments):
    return MyPaged.attention(*(x.float() if x.is_floating_point() else x for x in arguments))


WRITES_THE_POOL = """block = block_table[i, n // block_size]
            k_cache[block, n % block_size], v_cache[block, n % block_size] = k[i], v[i]
            blocks = """


def by_hand(q, k, v, k_cache, v_cache, block_table, context_lens):
    """In fp32, and back to q's dtype."""
    out = torch.empty_like(q)
    for i in range(len(q)):
        n, block_size = int(context_lens[i]), k_cache.size(1)
        keys, values = (
            torch.cat([cache[block_table[i, : -(-n // block_size)]].flatten(0, 1)[:n], new[i][None]]).float()
            for cache, new in ((k_cache, k), (v_cache, v))
        )
        query = q[i].float().unflatten(0, (k.size(1), -1)) * q.size(2) ** -0.5
        weights = torch.einsum("hgd,thd->hgt", query, keys).softmax(-1)
        out[i] = torch.einsum("hgt,thd->hgd", weights, values).flatten(0, 1)
    return out


class Mixin:
    attention = staticmethod(MyPaged.attention)


class WithMixin(Mixin, BlockTable): ...


class SetLater(BlockTable): ...


SetLater.attention = staticmethod(MyPaged.attention)

WHERE_NAN_LIES = "NaN lies where nothing was written"

test_a_wrong_attention_is_told_what_is_wrong = wrong_answers(
    "05.3",
    {
        "not a stage": ([1], "expected a subclass of BlockTable"),
        "a method": (
            paged({"@staticmethod": "", "attention(": "attention(self, "}),
            "missing 1 required positional argument",
        ),
        "unwritten slots": (paged({".flatten(0, 1)[:n]": ".flatten(0, 1)"}), WHERE_NAN_LIES),
        "logical as physical": (paged({f"block_table[i, {OWN}": "torch.arange(-(-n // block_size))"}), WHERE_NAN_LIES),
        "padded": (with_attention(padded), "does a short sequence pay for the longest one?"),
        "a block per token": (paged({OWN: ":n]"}), "does a sequence read more of its row than its own blocks"),
        "a copy of the pool": (
            paged({"block_size = ": "k_cache, v_cache = k_cache.clone(), v_cache.clone()\n        block_size = "}),
            "its sequences' own blocks hold",
        ),
        "always fp32": (with_attention(in_fp32), "dtype float32, expected bfloat16: the output has q's dtype"),
        "the pool written": (
            paged({"blocks = ": WRITES_THE_POOL}),
            "k_cache was handed in, and you have changed it: attention only reads",
        ),
        "30 blocks at most": (paged({OWN: f"{OWN}[:30]", "[:n]": "[: min(n, 30 * block_size)]"}), "context_lens=[300]"),
    },
    model="small",
)
test_a_right_attention = right_answers(
    "05.3",
    {
        "by hand, in fp32": with_attention(by_hand),
        "of a mixin": WithMixin,
    },
    model="small",
)
