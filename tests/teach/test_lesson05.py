"""Lesson 05: wrong answers of its exercises are told what is wrong; its walk, picture and price say exact facts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wrong_answers import assert_refused, wrong_answers

from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams
from roseinfer.teach import check, draw_block_walk, table_price, walk_tables
from stages import BlockTable, VectorizedGather


def table_of(block_lists, max_blocks):
    return torch.tensor([blocks + [0] * (max_blocks - len(blocks)) for blocks in block_lists], dtype=torch.int32)


def fill_up_in_place(block_lists, max_blocks):
    for blocks in block_lists:
        blocks.extend([0] * (max_blocks - len(blocks)))
    return torch.tensor(block_lists, dtype=torch.int32)


def cut_off(block_lists, max_blocks):
    return table_of([blocks[:max_blocks] for blocks in block_lists], max_blocks)


def widest(block_lists, max_blocks):
    return table_of(block_lists, max(map(len, block_lists)))


def padded_with_minus_one(block_lists, max_blocks):
    return torch.tensor([blocks + [-1] * (max_blocks - len(blocks)) for blocks in block_lists], dtype=torch.int32)


def refuse_without_a_word(block_lists, max_blocks):
    if any(len(blocks) > max_blocks for blocks in block_lists):
        raise ValueError
    return table_of(block_lists, max_blocks)


def refuse_and_say(block_lists, max_blocks):
    for blocks in block_lists:
        if len(blocks) > max_blocks:
            raise ValueError(f"{len(blocks)} blocks, allowed: max_blocks={max_blocks}")
    return table_of(block_lists, max_blocks)


def columns_of(table, positions, block_size):
    return (positions // block_size)[:, None]


def looked_up(table, positions, block_size):
    return table.gather(1, columns_of(table, positions, block_size)).squeeze(1).long(), positions % block_size


def look_up_one_by_one(table, positions, block_size):
    blocks = [row[position // block_size] for row, position in zip(table, positions, strict=True)]
    return torch.stack(blocks).long(), positions % block_size


@wrong_answers(
    "05.1",
    {
        "nothing returned": (lambda lists, most: None, "got None"),
        "the engine's lists filled up": (fill_up_in_place, "these lists belong to the engine"),
        "as wide as the longest": (widest, "shape (2, 2), expected (2, 3)"),
        "int64": (lambda lists, most: table_of(lists, most).long(), "dtype int64, expected int32"),
        "minus one where no block is": (padded_with_minus_one, "got -1, expected 0"),
        "cut off": (cut_off, "block 5 is cut off"),
        "refused without a word": (refuse_without_a_word, "a ValueError without a word"),
    },
)
def test_a_wrong_table(answer, message):
    assert_refused("05.1", answer, message)


@wrong_answers(
    "05.2",
    {
        "logical for physical": (lambda table, p, size: (p // size, p % size), "these are logical blocks, [1, 1, 0]"),
        "every column in every row": (
            lambda table, p, size: (table[:, p // size].long(), p % size),
            "reads every column in every row",
        ),
        "blocks alone": (lambda table, p, size: table.gather(1, p[:, None] // size), "expected a pair"),
        "a column": (
            lambda table, p, size: (table.gather(1, columns_of(table, p, size)).long(), p % size),
            "shape (3, 1), expected (3,): values right, only dimensions of size 1 differ",
        ),
        "int32": (
            lambda table, p, size: (table.gather(1, columns_of(table, p, size)).squeeze(1), p % size),
            "blocks: dtype int32, expected int64",
        ),
        "quotient taken off": (
            lambda table, p, size: (looked_up(table, p, size)[0], p - p // size),
            "blocks are right; slots: 2 of 3 values differ",
        ),
        "one by one": (look_up_one_by_one, "let one gather read all"),
    },
)
def test_a_wrong_look_up(answer, message):
    assert_refused("05.2", answer, message)


@pytest.mark.parametrize(("exercise", "answer"), [("05.1", refuse_and_say), ("05.2", looked_up)])
def test_a_right_answer_passes(exercise, answer):
    assert check(exercise, answer)


class PerSequence(BlockTable):
    """Right; what the mistakes below change is a class attribute."""

    scaled = new_token = interleaved = True
    most_blocks = None

    @classmethod
    def tokens(cls, cache, row, n, new):
        block_size = cache.size(1)
        blocks = row[: -(-n // block_size)][: cls.most_blocks]
        cached = cache[blocks].flatten(0, 1)[:n]
        return (torch.cat([cached, new[None]]) if cls.new_token else cached).transpose(0, 1)  # [H_kv, n + 1, D]

    @classmethod
    def attend(cls, q, k, v, k_cache, v_cache, block_table, context_lens):
        out = []
        for i, n in enumerate(context_lens.tolist()):
            keys = cls.tokens(k_cache, block_table[i], n, k[i])
            values = cls.tokens(v_cache, block_table[i], n, v[i])
            group = q.size(1) // k.size(1)
            if cls.interleaved:
                keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
            else:
                keys, values = keys.repeat(group, 1, 1), values.repeat(group, 1, 1)
            scale = None if cls.scaled else 1.0
            out.append(F.scaled_dot_product_attention(q[i].unsqueeze(1), keys, values, scale=scale).squeeze(1))
        return torch.stack(out)


def with_attention(base, **changes):
    """A subclass whose attention is base's, with the changed attributes."""
    changed = type("Changed", (base,), changes)
    return type("Answer", (base,), {"attention": staticmethod(changed.attend)})


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


class IgnoresTheTable(PerSequence):
    @classmethod
    def tokens(cls, cache, row, n, new):
        return super().tokens(cache, torch.arange(len(row)), n, new)


class WrongLayout(PerSequence):
    @classmethod
    def attend(cls, *arguments):
        return super().attend(*arguments).transpose(0, 1)


class NotStatic(BlockTable):
    def attention(self, q, k, v, k_cache, v_cache, block_table, context_lens):
        return q


class ReferenceAgain(BlockTable):
    attention = staticmethod(BlockTable.attention)


WRONG = {
    "not a stage": ([1], "expected a subclass of BlockTable"),
    "a method": (NotStatic, "attention must be a @staticmethod"),
    "no new token": (with_attention(PerSequence, new_token=False), "a new token reads itself too"),
    "not scaled": (with_attention(PerSequence, scaled=False), "divide q.k by the square root of head_dim"),
    "first block only": (with_attention(PerSequence, most_blocks=1), "only each sequence's first block is read"),
    "heads paired wrongly": (with_attention(PerSequence, interleaved=False), "query head h reads KV head h // group"),
    "unwritten slots": (with_attention(WholeBlocks), "NaN lies where nothing was written"),
    "logical as physical": (with_attention(IgnoresTheTable), "NaN lies where nothing was written"),
    "wrong layout": (with_attention(WrongLayout), "values right after permute(1, 0, 2)"),
    "padded": (with_attention(Padded), "does a short sequence pay for the longest one?"),
    "the reference": (ReferenceAgain, "does a short sequence pay for the longest one?"),
}


@wrong_answers("05.3", WRONG)
def test_a_wrong_attention_is_told_what_is_wrong(small, answer, message):
    assert_refused("05.3", answer, message, model=small)


def test_attention_by_sequence_passes_and_the_bare_class_is_a_stub(small):
    assert check("05.3", with_attention(PerSequence), model=small)
    bare = type("MyPaged", (BlockTable,), {})
    assert repr(check("05.3", bare, model=small)) == "05.3 not attempted"


def test_the_walk_shows_the_table_that_attention_was_given(small):
    stage = BlockTable(small, num_blocks=6, block_size=4, max_num_seqs=2)
    walk = walk_tables(stage, [[5] * 6, [6] * 2, [7] * 5], [4, 3, 3])
    assert repr(walk) == "4 frames: largest table 2 x 3; of 6 blocks 1 used again, 6 free at the end"
    assert len(repr(walk)) <= 110
    assert "waiting: 2" in walk.frames[0] and "finished: 0, 1, 2" in walk.frames[-1]
    assert "block 1, slot 2" in walk.frames[0]  # seq 0's token at position 6
    assert ">2 · seq 1: 3/4<" in walk.frames[0]


def test_the_picture_tells_each_walk(small):
    stage = BlockTable(small, num_blocks=6, block_size=4)
    seqs = begin(stage, [[3] * 6, [4] * 3], SamplingParams(max_tokens=8, ignore_eos=True))
    for _ in range(3):
        decode_step(stage, seqs)
    assert repr(draw_block_walk(stage, seqs)) == (
        "Left, gathered: 2 x 9 tokens, 3 of them padding. Right, a walk over blocks of 4 tokens, nothing gathered: "
        "sequence 0: [0, 1, 4]; sequence 1: [2, 3]."
    )


def test_the_price_counts_rows_that_changed(small):
    table = table_price(BlockTable, small, {"equal": [3, 3], "staggered": [1, 2, 3]}, steps=8, block_size=4)
    layers = small.config.num_layers
    assert table.df[["rows a step", "rows built", "rows changed"]].values.tolist() == [
        [layers * 2, 8 * layers * 2, 2 * layers * 2],
        [layers * 3, 8 * layers * 3, 2 * layers * 3],
    ]
    assert (table.df[["build us", "of the step", "of the floor"]] > 0).all(axis=None)
    assert "us" not in repr(table).splitlines()[1]


def test_a_stage_without_tables_is_refused(small):
    with pytest.raises(ValueError, match="stage_class must be a stage with block tables, .*got s04_vectorized_gather"):
        table_price(VectorizedGather, small, {"one": [3]})
    with pytest.raises(ValueError, match="stage must be a stage with block tables"):
        walk_tables(VectorizedGather(small, num_blocks=2), [[1]], [1])
