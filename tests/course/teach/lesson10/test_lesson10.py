"""Lesson 10: wrong answers of its exercises are told what is wrong, and right ones pass."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers import assert_refused, right_answers, wrong_answers

from roseinfer.kernels.paged_reference import paged_attention_reference

# 10.1


def slot_of(blocks, seq, position, size):
    return blocks[seq][position // size] * size + position % size


def slot_of_the_first(blocks, seq, position, size):
    return slot_of(blocks, 0, position % (len(blocks[0]) * size), size)


def slot_in_powers_of_two(blocks, seq, position, size):
    shift = size.bit_length() - 1
    return (blocks[seq][position >> shift] << shift) | (position & (size - 1))


def flat(blocks, cached, new, size, slot=slot_of):
    tokens = [(i, c + j) for i, (c, n) in enumerate(zip(cached, new, strict=True)) for j in range(n)]
    return [p for _, p in tokens], [slot(blocks, *token, size) for token in tokens], [0, *itertools.accumulate(new)]


test_a_wrong_flat_batch = wrong_answers(
    "10.1",
    {
        "nothing returned": (lambda *case: None, "expected (positions, slot_mapping, query_start), got None"),
        "two of the three": (lambda *case: flat(*case)[:2], "expected (positions, slot_mapping, query_start), got ("),
        "the first sequence's row for all": (partial(flat, slot=slot_of_the_first), "slot_mapping: you return"),
        "powers of two alone": (
            partial(flat, slot=slot_in_powers_of_two),
            "block_size=3: slot_mapping: you return",
        ),
        "one new token each": (
            lambda blocks, cached, new, size: flat(blocks, cached, [1] * len(new), size),
            "positions: you return [0], expected [0, 1",
        ),
    },
)


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


test_a_right_flat_batch = right_answers(
    "10.1", {"numpy": by_numpy, "torch, as a list": by_torch, "slices of all slots": by_walking}
)


# 10.2


def write(k, v, k_cache, v_cache, slot_mapping):
    blocks, offsets = slot_mapping.long() // k_cache.size(2), slot_mapping.long() % k_cache.size(2)
    k_cache[blocks, :, offsets] = k
    v_cache[blocks, :, offsets] = v


def tokens_of(cache, table, length):
    blocks = table[: -(-length // cache.size(2))].long()
    return cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length]  # [H_kv, T, D]


def causal(new, length):
    return torch.arange(length) <= length - new + torch.arange(new)[:, None]


def attend(q, k_cache, v_cache, query_start, context_lens, block_tables, tokens=tokens_of, mask=causal):
    out = []
    for i, length in enumerate(context_lens.tolist()):
        queries = q[query_start[i] : query_start[i + 1]].transpose(0, 1)
        keys, values = (tokens(cache, block_tables[i], length) for cache in (k_cache, v_cache))
        seen = mask(queries.size(1), length)
        out.append(F.scaled_dot_product_attention(queries, keys, values, seen, enable_gqa=True).transpose(0, 1))
    return torch.cat(out)


def run(q, k, v, k_cache, v_cache, slot_mapping, *rest, write=write, **changes):
    """Right, but for the functions in `changes`."""
    write(k, v, k_cache, v_cache, slot_mapping)
    return attend(q, k_cache, v_cache, *rest, **changes)


def attend_first(q, k, v, k_cache, v_cache, slot_mapping, *rest):
    out = attend(q, k_cache, v_cache, *rest)
    write(k, v, k_cache, v_cache, slot_mapping)
    return out


def token_major(k, v, k_cache, v_cache, slot_mapping):
    blocks, offsets = slot_mapping.long() // k_cache.size(2), slot_mapping.long() % k_cache.size(2)
    k_cache[blocks, offsets] = k
    v_cache[blocks, offsets] = v


def flat_view(k, v, k_cache, v_cache, slot_mapping):
    """As if a token's heads lay together: right where there is one head alone."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.view(-1, *new.shape[1:])[slot_mapping.long()] = new


def on_a_copy(k, v, k_cache, v_cache, slot_mapping):
    """reshape of a transposed pool is a copy, and the pool stays as it was."""
    for cache, new in ((k_cache, k), (v_cache, v)):
        cache.transpose(1, 2).reshape(-1, *new.shape[1:])[slot_mapping.long()] = new


def last_token_alone(k, v, k_cache, v_cache, slot_mapping):
    write(k[-1:], v[-1:], k_cache, v_cache, slot_mapping[-1:])


def whole_blocks(cache, table, length):
    return cache[table[: -(-length // cache.size(2))].long()].transpose(0, 1).flatten(1, 2)


def heads_mixed_up(cache, table, length):
    """Without a transpose tokens and heads of several blocks run into each other."""
    blocks = cache[table[: -(-length // cache.size(2))].long()]
    return blocks.reshape(cache.size(1), -1, cache.size(3))[:, :length]


def returns_nothing(*arguments):
    run(*arguments)


def turns_the_queries(q, k, v, *rest):
    out = run(q, k, v, *rest)
    q *= q.size(-1) ** -0.5
    return out


def nothing_written(q, k, v, k_cache, v_cache, slot_mapping, *rest):
    return run(q, k, v, k_cache.clone(), v_cache.clone(), slot_mapping, *rest)


test_a_wrong_write_then_attend = wrong_answers(
    "10.2",
    {
        "nothing returned": (returns_nothing, "attention: you return None, expected tensor"),
        "into a copy of the pools": (nothing_written, "k_cache: 1 slot wrong, the first in block"),
        "into a copy by reshape": (partial(run, write=on_a_copy), "nothing is written there"),
        "token-major index": (partial(run, write=token_major), "other values are there"),
        "a token's heads together": (partial(run, write=flat_view), "slots wrong, the first in block"),
        "the last token alone": (partial(run, write=last_token_alone), "k_cache: 1 slot wrong, the first in block"),
        "attend first": (attend_first, "in the slots of new tokens until they are written"),
        "whole blocks": (
            partial(run, tokens=whole_blocks, mask=lambda new, length: torch.ones(new, 1, dtype=bool)),
            "NaN lies where no token is",
        ),
        "heads mixed up": (partial(run, tokens=heads_mixed_up), "values differ"),
        "fp32 for all": (lambda *given: run(*given).float(), "dtype float32, expected"),
        "squeezed": (lambda *given: run(*given).squeeze(0), "values right, only dimensions of size 1 differ"),
        "the queries scaled in place": (turns_the_queries, "q was handed in, and you have changed it"),
    },
)


def token_by_token(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables):
    """One token after the other: each is written, and sees what is there by then."""
    size, rows = k_cache.size(2), []
    starts = query_start.tolist()
    for i, length in enumerate(context_lens.tolist()):
        for n in range(starts[i], starts[i + 1]):
            block, offset = divmod(int(slot_mapping[n]), size)
            k_cache[block, :, offset], v_cache[block, :, offset] = k[n], v[n]
            seen = length - (starts[i + 1] - n) + 1
            keys, values = (tokens_of(cache, block_tables[i], seen) for cache in (k_cache, v_cache))
            query = q[n].unsqueeze(1)
            rows.append(F.scaled_dot_product_attention(query, keys, values, enable_gqa=True).squeeze(1))
    return torch.stack(rows)


def scaled_before(q, *rest):
    """The library's attention of queries that were scaled there and back."""
    return paged_attention_reference(2 * q / 2, *rest)


test_a_right_write_then_attend = right_answers(
    "10.2",
    {
        "the library's, with a line of the learner's": scaled_before,
        "token by token": token_by_token,
        "sequence by sequence": run,
    },
)


def test_the_librarys_attention_is_not_counted():
    assert_refused("10.2", paged_attention_reference, "the library's own: `roseinfer.kernels.paged_reference.paged")
