"""Lesson 10: wrong answers of its exercises are told what is wrong, and right ones pass."""

from __future__ import annotations

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers

from roseinfer.kernels.paged_reference import paged_attention_reference

# 10.1


def parts(blocks, cached, new, size):
    """The right answer, in parts that the wrong ones change."""
    tokens = [(i, c + j) for i, (c, n) in enumerate(zip(cached, new, strict=True)) for j in range(n)]
    positions = [p for _, p in tokens]
    slots = [blocks[i][p // size] * size + p % size for i, p in tokens]
    return positions, slots, [0, *itertools.accumulate(new)], tokens


def flat(change):
    """Answers that differ in one part: change(positions, slots, starts, tokens, blocks, cached, new, size)."""

    def answer(blocks, cached, new, size):
        return change(*parts(blocks, cached, new, size), blocks, cached, new, size)

    return answer


def of_the_first(positions, slots, starts, tokens, blocks, cached, new, size):
    return positions, [blocks[0][p // size % len(blocks[0])] * size + p % size for _, p in tokens], starts


def slots_in_powers_of_two(positions, slots, starts, tokens, blocks, cached, new, size):
    shift = size.bit_length() - 1
    return positions, [(blocks[i][p >> shift] << shift) | (p & (size - 1)) for i, p in tokens], starts


def one_new_token_each(blocks, cached, new, size):
    return parts(blocks, cached, [1] * len(new), size)[:3]


@wrong_answers(
    "10.1",
    {
        "nothing returned": (lambda *case: None, "expected (positions, slot_mapping, query_start), got None"),
        "two of the three": (lambda *case: parts(*case)[:2], "expected (positions, slot_mapping, query_start), got ("),
        "positions from 0": (
            flat(lambda p, s, q, t, blocks, cached, new, size: ([j for n in new for j in range(n)], s, q)),
            "positions: you return [0], expected [2]: every sequence counts from 0",
        ),
        "positions from 1": (
            flat(lambda p, s, q, *_: ([x + 1 for x in p], s, q)),
            "positions: you return [1, 2], expected [0, 1]: one more than it is",
        ),
        "places in the batch": (
            flat(lambda p, s, q, *_: (list(range(len(p))), s, q)),
            "these are places in the flat batch",
        ),
        "logical slots": (flat(lambda p, s, q, *_: (p, p, q)), "these are logical slots"),
        "block ids": (
            flat(lambda p, s, q, t, blocks, c, n, size: (p, [blocks[i][x // size] for i, x in t], q)),
            "slot_mapping: you return [2, 2], expected [6, 7]: these are block ids",
        ),
        "offsets": (
            flat(lambda p, s, q, t, b, c, n, size: (p, [x % size for x in p], q)),
            "the block is missing, these are offsets in it",
        ),
        "block plus offset": (
            flat(lambda p, s, q, t, blocks, c, n, size: (p, [blocks[i][x // size] + x % size for i, x in t], q)),
            "its first slot is block * block_size",
        ),
        "the first block for all": (
            flat(lambda p, s, q, t, blocks, c, n, size: (p, [blocks[i][0] * size + x % size for i, x in t], q)),
            "every token of a sequence goes to its first block",
        ),
        "the first sequence's row for all": (flat(of_the_first), "slot_mapping: you return"),
        "powers of two alone": (flat(slots_in_powers_of_two), "block_size=3: slot_mapping: you return"),
        "no end": (flat(lambda p, s, q, *_: (p, s, q[:-1])), "the number of all tokens is missing at the end"),
        "no beginning": (flat(lambda p, s, q, *_: (p, s, q[1:])), "the first sequence begins at 0"),
        "lengths": (
            flat(lambda p, s, q, t, b, c, new, size: (p, s, new)),
            "these are lengths: query_start is their running sum",
        ),
        "one new token each": (one_new_token_each, "positions: you return [0], expected [0, 1"),
    },
)
def test_a_wrong_flat_batch(answer, message):
    assert_refused("10.1", answer, message)


def by_numpy(blocks, cached, new, size):
    starts = np.concatenate([[0], np.cumsum(new)])
    positions = np.arange(starts[-1]) + np.repeat(np.array(cached) - starts[:-1], new)
    table = np.zeros((len(blocks), max(map(len, blocks))), int)
    for row, ids in zip(table, blocks, strict=True):
        row[: len(ids)] = ids
    rows = np.repeat(np.arange(len(blocks)), new)
    return positions, table[rows, positions // size] * size + positions % size, starts


def by_torch(blocks, cached, new, size):
    pool = torch.cat([torch.tensor(ids)[:, None] * size + torch.arange(size) for ids in blocks]).flatten()
    first = torch.tensor([0, *itertools.accumulate(len(ids) * size for ids in blocks)])
    positions = torch.cat([torch.arange(c, c + n) for c, n in zip(cached, new, strict=True)])
    owner = torch.repeat_interleave(torch.arange(len(new)), torch.tensor(new))
    return [positions, pool[first[owner] + positions], torch.tensor([0, *new]).cumsum(0)]


def by_walking(blocks, cached, new, size):
    positions, slots, starts = (), (), (0,)
    for ids, c, n in zip(blocks, cached, new, strict=True):
        all_slots = [block * size + offset for block in ids for offset in range(size)]
        positions += tuple(range(c, c + n))
        slots += tuple(all_slots[c : c + n])
        starts += (len(slots),)
    return positions, slots, starts


@right_answers("10.1", {"numpy": by_numpy, "torch, as a list": by_torch, "slices of all slots": by_walking})
def test_a_right_flat_batch(answer):
    assert_accepted("10.1", answer)


# 10.2


class PerSequence:
    """Right; what the mistakes below change is a class attribute."""

    scaled = interleaved = in_order = whole_dtype = True
    most_blocks = None
    causal = "own"
    order = "write, attend"

    @classmethod
    def write(cls, k, v, k_cache, v_cache, slot_mapping):
        blocks, offsets = slot_mapping.long() // k_cache.size(2), slot_mapping.long() % k_cache.size(2)
        k_cache[blocks, :, offsets] = k
        v_cache[blocks, :, offsets] = v

    @classmethod
    def tokens(cls, cache, table, length):
        blocks = table[: -(-length // cache.size(2))].long()[: cls.most_blocks]
        return cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length]  # [H_kv, T, D]

    @classmethod
    def mask(cls, new, length):
        if cls.causal == "none":
            return torch.ones(new, length, dtype=torch.bool)
        first = {"own": length - new, "top": 0, "without itself": length - new - 1}[cls.causal]
        return torch.arange(length) <= first + torch.arange(new)[:, None]

    @classmethod
    def rows(cls, q, k_cache, v_cache, query_start, context_lens, block_tables):
        out = []
        for i, length in enumerate(context_lens.tolist()):
            queries = q[query_start[i] : query_start[i + 1]].transpose(0, 1)
            keys, values = (cls.tokens(cache, block_tables[i], length) for cache in (k_cache, v_cache))
            group = q.size(1) // k_cache.size(1)
            if cls.interleaved:
                keys, values = keys.repeat_interleave(group, 0), values.repeat_interleave(group, 0)
            else:
                keys, values = keys.repeat(group, 1, 1), values.repeat(group, 1, 1)
            mask = cls.mask(queries.size(1), length)[:, : keys.size(1)]
            scale = None if cls.scaled else 1.0
            out.append(F.scaled_dot_product_attention(queries, keys, values, mask, scale=scale).transpose(0, 1))
        return torch.cat(out)

    @classmethod
    def run(cls, q, k, v, k_cache, v_cache, slot_mapping, *rest):
        if cls.order == "write, attend":
            cls.write(k, v, k_cache, v_cache, slot_mapping)
        out = cls.rows(q, k_cache, v_cache, *rest)
        if cls.order == "attend, write":
            cls.write(k, v, k_cache, v_cache, slot_mapping)
        return out


def changed(**changes):
    """run of a subclass with these attributes."""
    return type("Changed", (PerSequence,), changes).run


def written_by(write):
    """run of a subclass that writes in its own way."""
    return changed(write=staticmethod(write))


def token_major(k, v, k_cache, v_cache, slot_mapping):
    blocks, offsets = slot_mapping.long() // k_cache.size(2), slot_mapping.long() % k_cache.size(2)
    k_cache[blocks, offsets] = k
    v_cache[blocks, offsets] = v


def flat_view(k, v, k_cache, v_cache, slot_mapping):
    """As if a token's heads lay together: right where there is one head alone."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.view(-1, *new.shape[1:])[slot_mapping.long()] = new


def keys_twice(k, v, k_cache, v_cache, slot_mapping):
    PerSequence.write(k, k, k_cache, v_cache, slot_mapping)


def swapped(k, v, k_cache, v_cache, slot_mapping):
    PerSequence.write(v, k, k_cache, v_cache, slot_mapping)


def on_a_copy(k, v, k_cache, v_cache, slot_mapping):
    """reshape of a transposed pool is a copy, and the pool stays as it was."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.transpose(1, 2).reshape(-1, *new.shape[1:])[slot_mapping.long()] = new


def last_token_alone(k, v, k_cache, v_cache, slot_mapping):
    PerSequence.write(k[-1:], v[-1:], k_cache, v_cache, slot_mapping[-1:])


def whole_blocks(cache, table, length):
    return cache[table[: -(-length // cache.size(2))].long()].transpose(0, 1).flatten(1, 2)


def heads_mixed_up(cache, table, length):
    """Without a transpose tokens and heads of several blocks run into each other."""
    blocks = cache[table[: -(-length // cache.size(2))].long()]
    return blocks.reshape(cache.size(1), -1, cache.size(3))[:, :length]


def returns_nothing(*arguments):
    PerSequence.run(*arguments)


def squeezed(*arguments):
    return PerSequence.run(*arguments).squeeze(0)


def in_fp32(q, k, v, *rest):
    return PerSequence.run(q, k, v, *rest).float()


def turns_the_queries(q, k, v, *rest):
    out = PerSequence.run(q, k, v, *rest)
    q *= q.size(-1) ** -0.5
    return out


def nothing_written(q, k, v, k_cache, v_cache, slot_mapping, *rest):
    return PerSequence.run(q, k, v, k_cache.clone(), v_cache.clone(), slot_mapping, *rest)


@wrong_answers(
    "10.2",
    {
        "nothing returned": (returns_nothing, "attention: got None: is a `return` missing?"),
        "into a copy of the pools": (nothing_written, "k_cache: 1 slot wrong, the first in block"),
        "into a copy by reshape": (written_by(on_a_copy), "nothing is written there"),
        "token-major index": (written_by(token_major), "other values stand there"),
        "a token's heads together": (written_by(flat_view), "slots wrong, the first in block"),
        "keys in both": (written_by(keys_twice), "v_cache: 1 slot wrong"),
        "keys and values swapped": (written_by(swapped), "these are the values: k belongs there"),
        "the last token alone": (written_by(last_token_alone), "k_cache: 1 slot wrong, the first in block 2"),
        "attend first": (changed(order="attend, write"), "in the slots of new tokens until they are written"),
        "the future seen": (changed(causal="none"), "a token of a prompt sees those after it"),
        "causal from key 0": (changed(causal="top"), "the causal mask begins at key 0"),
        "not itself": (changed(causal="without itself"), "a token does not see itself"),
        "not scaled": (changed(scaled=False), "the scores are not scaled"),
        "heads in turn": (changed(interleaved=False), "query head h reads KV head h // group"),
        "one block": (changed(most_blocks=1), "only each sequence's first block is read"),
        "whole blocks": (
            changed(
                tokens=staticmethod(whole_blocks), mask=staticmethod(lambda new, length: torch.ones(new, 1, dtype=bool))
            ),
            "NaN lies where no token is",
        ),
        "heads mixed up": (changed(tokens=staticmethod(heads_mixed_up)), "values differ"),
        "fp32 for all": (in_fp32, "dtype float32, expected"),
        "squeezed": (squeezed, "values right, only dimensions of size 1 differ"),
        "the queries scaled in place": (turns_the_queries, "q was handed in, and you have changed it"),
    },
)
def test_a_wrong_write_then_attend(answer, message):
    assert_refused("10.2", answer, message)


def token_by_token(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables):
    """One token after the other: each is written, and sees what is there by then."""
    size, rows = k_cache.size(2), []
    starts = query_start.tolist()
    for i, length in enumerate(context_lens.tolist()):
        for n in range(starts[i], starts[i + 1]):
            block, offset = divmod(int(slot_mapping[n]), size)
            k_cache[block, :, offset], v_cache[block, :, offset] = k[n], v[n]
            seen = length - (starts[i + 1] - n) + 1
            keys, values = (PerSequence.tokens(cache, block_tables[i], seen) for cache in (k_cache, v_cache))
            query = q[n].unsqueeze(1)
            rows.append(F.scaled_dot_product_attention(query, keys, values, enable_gqa=True).squeeze(1))
    return torch.stack(rows)


def scaled_before(q, *rest):
    """The library's attention of queries that were scaled there and back."""
    return paged_attention_reference(2 * q / 2, *rest)


RIGHT_ATTENTIONS = {
    "the library's, with a line of one's own": scaled_before,
    "token by token": token_by_token,
    "a class's": PerSequence.run,
}


@right_answers("10.2", RIGHT_ATTENTIONS)
def test_a_right_write_then_attend(answer):
    assert_accepted("10.2", answer)


def test_the_librarys_attention_is_not_counted():
    assert_refused("10.2", paged_attention_reference, "the library's own: `roseinfer.kernels.paged_reference.paged")
