"""Lesson 10: wrong answers of its exercises are told what is wrong, and right ones pass."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from roseinfer.kernels.paged_reference import paged_attention_reference

# 10.1


flat_with = partial(solution, "10.1")
POWERS_OF_TWO = {
    "divmod(position, block_size)": "divmod(position, 2 ** (block_size.bit_length() - 1))",
    "* block_size + offset": "* 2 ** (block_size.bit_length() - 1) + offset",
}
test_a_wrong_flat_batch = wrong_answers(
    "10.1",
    {
        "the first sequence's row for all": (
            flat_with({"blocks[column]": "block_lists[0][column % len(block_lists[0])]"}),
            "slot_mapping: you return",
        ),
        "places in the flat batch": (
            flat_with({"positions.append(position)": "positions.append(len(positions))"}),
            "positions: you return [0",
        ),
        "powers of two alone": (flat_with(POWERS_OF_TWO), "block_size=3: slot_mapping: you return"),
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


test_a_right_flat_batch = right_answers("10.1", {"numpy": by_numpy, "torch, as a list": by_torch})


# 10.2


attend_with = partial(solution, "10.2", torch=torch, F=F)
WRITE_K, WRITE_V = "k_cache[blocks, :, offsets] = k\n", "v_cache[blocks, :, offsets] = v\n"
ATTEND_FIRST = {WRITE_K: "\n", WRITE_V: "\n", "return out": f"{WRITE_K}    {WRITE_V}    return out"}
WHOLE_BLOCKS = {
    "flatten(1, 2)[:, :length]": "flatten(1, 2)",
    "torch.arange(length) <= position[:, None]": "torch.ones(1, keys.size(1), dtype=torch.bool)",
}
test_a_wrong_write_then_attend = wrong_answers(
    "10.2",
    {
        "into a copy by reshape": (  # reshape of a transposed pool is a copy, and the pool stays as it was
            attend_with({WRITE_K: "k_cache.transpose(1, 2).reshape(-1, *k.shape[1:])[slot_mapping.long()] = k\n"}),
            "k_cache: ",
        ),
        "a token's heads together": (
            attend_with({WRITE_K: "k_cache.view(-1, *k.shape[1:])[slot_mapping.long()] = k\n"}),
            "k_cache: dimensions in another order",
        ),
        "attend first": (attend_with(ATTEND_FIRST), "in the slots of new tokens until they are written"),
        "whole blocks": (attend_with(WHOLE_BLOCKS), "NaN lies where no token is"),
        "heads mixed up": (
            attend_with({"transpose(0, 1).flatten(1, 2)": "reshape(k.size(1), -1, k.size(2))"}),
            "values differ",
        ),
        "the queries scaled in place": (
            attend_with({"return out": "q *= q.size(-1) ** -0.5\n    return out"}),
            "q was handed in, and you have changed it",
        ),
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
            table = block_tables[i, : -(-seen // size)].long()
            keys, values = (cache[table].transpose(0, 1).flatten(1, 2)[:, :seen] for cache in (k_cache, v_cache))
            query = q[n].unsqueeze(1)
            rows.append(F.scaled_dot_product_attention(query, keys, values, enable_gqa=True).squeeze(1))
    return torch.stack(rows)


def scaled_before(q, *rest):
    """The library's attention of queries that were scaled there and back."""
    return paged_attention_reference(2 * q / 2, *rest)


test_a_right_write_then_attend = right_answers(
    "10.2", {"the library's, with a line of the learner's": scaled_before, "token by token": token_by_token}
)


# 10.4

piece_with = partial(solution, "10.4")
WAITS = "        if self.copied:\n            self.copied.synchronize()\n"

test_wrong_tables = wrong_answers(
    "10.4",
    {
        "another name": (piece_with({"def write_tables(": "def tables_of("}), "write write_tables too"),
        "slots without an offset": (piece_with({" + offset)": ")"}), "token 0 is 90, expected 52"),
        "lengths in place of starts": (piece_with({"starts.append(len(slots))": "starts.append(n)"}), "token 0 is 35"),
        "positions from 0": (
            piece_with({"range(first, first + n)\n        return": "range(n)\n        return"}),
            "token 1 is 84",
        ),
        "no rows": (piece_with({"[row, : len(blocks)] = blocks": "[row, : len(blocks)] = 0"}), "**A batch of equal"),
        "one layer's pool": (piece_with({"pool[:, layer]": "pool[:, 0]"}), "token 1 is 7, expected 18"),
        "the last tokens": (
            piece_with({"seq.token_ids[first : first + n]": "seq.token_ids[-n:]"}),
            "the promise **Any budget**",
        ),
        "the course's": (
            piece_with({WAITS: "        return super().write_inputs(seqs, num_new)\n"}),
            "write_inputs is what you have to write, and super() has none here, in line 22 of your cell",
        ),
    },
)
test_right_tables = right_answers(
    "10.4",
    {
        "K and V apart": piece_with({"pool[:, layer]": "pool[0, layer], self.stage.pool[1, layer]"}),
        "a result of its own": piece_with({"attended[:num_tokens]": "attended[:num_tokens].clone()"}),
    },
)
