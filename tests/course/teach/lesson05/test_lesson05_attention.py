"""Lesson 05: a wrong attention is told what is wrong, and a right one passes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import changed, right_answers, wrong_answers

from stages import BlockTable

pytestmark = pytest.mark.slow


# 05.3


class PerSequence(BlockTable):
    """Right; what the mistakes below change is a class attribute."""

    new_token = True

    @staticmethod
    def blocks(row, n, block_size):
        return row[: -(-n // block_size)]

    @classmethod
    def tokens(cls, cache, row, n, new):
        cached = cache[cls.blocks(row, n, cache.size(1))].flatten(0, 1)[:n]
        return (torch.cat([cached, new[None]]) if cls.new_token else cached).transpose(0, 1)  # [H_kv, n + 1, D]

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
        out = []
        for i, n in enumerate(context_lens.tolist()):
            keys = cls.tokens(k_cache, block_table[i], n, k[i])
            values = cls.tokens(v_cache, block_table[i], n, v[i])
            row = F.scaled_dot_product_attention(q[i].unsqueeze(1), keys, values, enable_gqa=True)
            out.append(row.squeeze(1))
        return torch.stack(out)


def with_attention(base, **members):
    """A subclass whose attention is base's, with the changed members."""
    return changed(base, attention=staticmethod(changed(base, **members).attend))


def reading(blocks):
    """blocks(row, n, block_size): what a sequence reads of its row."""
    return with_attention(PerSequence, blocks=staticmethod(blocks))


def after_all(turn):
    """turn: what is done to the right output."""
    return with_attention(PerSequence, attend=lambda *arguments: turn(PerSequence.attend(*arguments)))


class Padded(PerSequence):
    """One batch for all, as stage 04 makes it."""

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
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


class WholeBlocks(PerSequence):
    @classmethod
    def tokens(cls, cache, row, n, new):
        cached = cache[row[: -(-n // cache.size(1))]].flatten(0, 1)
        return torch.cat([cached, new[None]]).transpose(0, 1)


class Fp32(PerSequence):
    @classmethod
    def attend(cls, *arguments):
        return super().attend(*(x.float() if x.is_floating_point() else x for x in arguments))


class WritesThePool(PerSequence):
    """Puts the new token where append will put it, before it reads."""

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
        for i, n in enumerate(context_lens.tolist()):
            block = block_table[i, n // k_cache.size(1)]
            k_cache[block, n % k_cache.size(1)], v_cache[block, n % k_cache.size(1)] = k[i], v[i]
        read = type("Read", (cls,), {"new_token": False})
        return super(WritesThePool, read).attend(q, k, v, k_cache, v_cache, block_table, context_lens + 1)


class Causal(PerSequence):
    """A mask made for prompts: with one query, it leaves the first key alone."""

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
        rows = []
        for i, n in enumerate(context_lens.tolist()):
            keys = cls.tokens(k_cache, block_table[i], n, k[i])
            values = cls.tokens(v_cache, block_table[i], n, v[i])
            query = q[i].unsqueeze(1)
            rows.append(F.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True))
        return torch.stack(rows).squeeze(2)


class WithMath(PerSequence):
    """In fp32, by hand, and back to q's dtype."""

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
        out = torch.empty_like(q)
        for i in range(len(q)):
            n = int(context_lens[i])
            keys = cls.tokens(k_cache, block_table[i], n, k[i]).float()
            values = cls.tokens(v_cache, block_table[i], n, v[i]).float()
            query = q[i].float().unflatten(0, (k.size(1), -1)) * q.size(2) ** -0.5
            weights = torch.einsum("hgd,htd->hgt", query, keys).softmax(-1)
            out[i] = torch.einsum("hgt,htd->hgd", weights, values).flatten(0, 1)
        return out


class Mixin:
    attention = staticmethod(PerSequence.attend)


class WithMixin(Mixin, BlockTable): ...


class SetLater(BlockTable): ...


SetLater.attention = staticmethod(PerSequence.attend)


WRONG = {
    "not a stage": ([1], "expected a subclass of BlockTable"),
    "a method": (changed(BlockTable, attention=lambda self, q, *rest: q), "attention must be a @staticmethod"),
    "no new token": (with_attention(PerSequence, new_token=False), "a new token also attends to itself"),
    "first block only": (reading(lambda row, n, size: row[:1]), "only each sequence's first block is read"),
    "unwritten slots": (with_attention(WholeBlocks), "NaN lies where nothing was written"),
    "logical as physical": (
        reading(lambda row, n, size: torch.arange(-(-n // size))),
        "NaN lies where nothing was written",
    ),
    "wrong layout": (after_all(lambda out: out.transpose(0, 1)), "values right after permute(1, 0, 2)"),
    "padded": (with_attention(Padded), "does a short sequence pay for the longest one?"),
    "a block per token": (
        reading(lambda row, n, size: row[:n]),
        "does a sequence read more of its row than its own blocks",
    ),
    "the reference": (
        changed(BlockTable, attention=staticmethod(BlockTable.attention)),
        "does a short sequence pay for the longest one?",
    ),
    "always fp32": (with_attention(Fp32), "dtype float32, expected bfloat16: the output has q's dtype"),
    "blocks of 8": (reading(lambda row, n, size: row[: -(-n // 8)]), "blocks of 1, "),
    "squeezed": (after_all(lambda out: out.squeeze()), "values right, only dimensions of size 1 differ"),
    "the pool written": (
        with_attention(WritesThePool),
        "k_cache was handed in, and you have changed it: attention only reads",
    ),
    "causal": (with_attention(Causal), "values differ"),
    "30 blocks at most": (reading(lambda row, n, size: row[: -(-n // size)][:30]), "context_lens=[300]"),
}


test_a_wrong_attention_is_told_what_is_wrong = wrong_answers("05.3", WRONG, model="small")


RIGHT_ATTENTIONS = {
    "by sequence": with_attention(PerSequence),
    "by hand, in fp32": with_attention(WithMath),
    "inherited": changed(with_attention(PerSequence)),
    "of a mixin": WithMixin,
    "set after the class": SetLater,
}


test_a_right_attention = right_answers("05.3", RIGHT_ATTENTIONS, model="small")
