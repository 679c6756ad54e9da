"""Attention over flat batches: every backend on every hard case, and wrong attentions, which the cases have to name."""

from __future__ import annotations

import pytest
import torch

from roseinfer.kernels.flat_cases import CASES, batches, flat_case, judge

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def dense(q, k, v, k_cache, v_cache, slot_mapping, query_start, context_lens, block_tables, out=None):
    """The oracle: a token at a time in Python, its sequence gathered into one piece, softmax in fp64."""
    write(k, k_cache, slot_mapping)
    write(v, v_cache, slot_mapping)
    return attend(q, k_cache, v_cache, query_start, context_lens, block_tables)


def write(new, cache, slot_mapping):
    for token, slot in enumerate(slot_mapping.tolist()):
        cache[slot // cache.size(2), :, slot % cache.size(2)] = new[token]


def attend(q, k_cache, v_cache, query_start, context_lens, block_tables, *, seen=lambda position: position + 1):
    """seen: how many slots the token at a position sees."""
    num_kv_heads, block_size = k_cache.shape[1:3]
    out = torch.full(q.shape, float("nan"), dtype=torch.float64)
    starts = query_start.tolist()
    for i, context_len in enumerate(context_lens.tolist()):
        keys, values = (
            torch.cat([cache[block] for block in block_tables[i].tolist()], dim=1).double()
            for cache in (k_cache, v_cache)
        )  # [H_kv, W * block_size, D]
        for token in range(starts[i], starts[i + 1]):
            n = seen(context_len - (starts[i + 1] - token))
            query = q[token].double().view(num_kv_heads, -1, q.size(-1)) * q.size(-1) ** -0.5
            weights = torch.einsum("hgd,hsd->hgs", query, keys[:, :n]).softmax(-1)
            out[token] = torch.einsum("hgs,hsd->hgd", weights, values[:, :n]).reshape(q.shape[1:])
    return out.to(q.dtype)


BACKENDS = {"the dense oracle": dense}


@pytest.mark.parametrize("name", CASES)
def test_every_backend_on_every_case(name):
    for backend in BACKENDS.values():
        case = flat_case(**CASES[name])
        assert judge(backend, dense, case).verdict == "ok"


# The cases themselves


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_case_is_hard(dtype):
    """NaN wherever no token was written, shuffled blocks, shared ones, and cuts of wider tensors."""
    sequences = batches(16)["chunks"]
    case = flat_case(sequences, group=7, num_kv_heads=2, shared_blocks=1, padding=2, dtype=dtype)
    filled = case.k_cache.isfinite().all(-1).all(1)  # [num_blocks, block_size]
    assert torch.equal(filled, case.v_cache.isfinite().all(-1).all(1))
    assert torch.equal(filled, case.k_cache.isfinite().any(-1).any(1))
    having_a_full_block = sum(cached >= 16 for cached, _ in sequences)
    assert filled.sum() == sum(cached for cached, _ in sequences) - 16 * (having_a_full_block - 1)
    assert not filled[0].any() and not filled[-1].any()
    assert case.real.tolist() == [True] * (len(case.q) - 2) + [False] * 2
    new_slots = case.slot_mapping[case.real]
    assert len(set(new_slots.tolist())) == len(new_slots) and not filled.flatten()[new_slots.long()].any()

    for row, (cached, new) in zip(case.block_tables.tolist(), sequences, strict=False):
        used = -(-(cached + new) // 16)
        assert 0 not in row[:used] and set(row[used:]) == {0}
    longest = max(case.block_tables.tolist(), key=lambda row: len(set(row)))
    assert longest != sorted(longest)
    full = torch.tensor([cached >= 16 for cached, _ in sequences] + [False] * 2)
    assert len(case.block_tables[full, 0].unique()) == 1
    assert not any(x.is_contiguous() for x in (case.q, case.k, case.v, case.block_tables))
    assert {x.dtype for x in case} == {dtype, torch.int32}


def test_the_cases_have_every_length_that_has_broken_a_kernel():
    for block_size in (16, 64):
        kinds = batches(block_size)
        edges = {1, block_size - 1, block_size, block_size + 1, 4 * block_size}
        assert {0, *edges} == {cached for cached, _ in kinds["decode"]}
        assert edges == {new for _, new in kinds["prompts"]}
        totals = {cached + new for cached, new in kinds["chunks"] + kinds["mixed"]}
        assert {block_size + 1, 2 * block_size, 4 * block_size} <= totals
    shapes = {tuple(case[key] for key in ("group", "head_dim", "block_size")) for case in CASES.values()}
    for axis, expected in enumerate(({1, 4, 7}, {32, 64, 80, 128}, {1, 16, 64})):
        assert {shape[axis] for shape in shapes} == expected


# Wrong attentions, each wrong in one way


def reads_one_slot_too_many(q, k, v, k_cache, v_cache, slots, *where):
    write(k, k_cache, slots), write(v, v_cache, slots)
    return attend(q, k_cache, v_cache, *where, seen=lambda position: position + 2)


def does_not_see_itself(q, k, v, k_cache, v_cache, slots, *where):
    write(k, k_cache, slots), write(v, v_cache, slots)
    return attend(q, k_cache, v_cache, *where, seen=lambda position: max(1, position))


def sees_its_whole_chunk(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables):
    """Right for decode; in a chunk every token sees what comes after it."""
    write(k, k_cache, slots), write(v, v_cache, slots)
    rows = [
        attend(q[n : n + 1], k_cache, v_cache, torch.tensor([0, 1]), context_lens[i : i + 1], tables[i : i + 1])
        for i in range(len(tables))
        for n in range(query_start[i], query_start[i + 1])
    ]
    return torch.cat(rows)


def forgets_the_scale(q, *others):
    return dense(q * q.size(-1) ** 0.5, *others)


def positions_of_a_chunk_start_at_its_end(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables):
    """Takes context_lens for what was cached before, as stage 07's kernel does."""
    return dense(q, k, v, k_cache, v_cache, slots, query_start, context_lens + query_start.diff() - 1, tables)


def ignores_query_start(q, k, v, k_cache, v_cache, slots, query_start, *others):
    """Gives every sequence equally many tokens."""
    even = torch.linspace(0, len(q), len(query_start)).int()
    return dense(q, k, v, k_cache, v_cache, slots, even, *others)


def attends_before_it_writes(q, k, v, k_cache, v_cache, slots, *where):
    out = attend(q, k_cache, v_cache, *where)
    write(k, k_cache, slots), write(v, v_cache, slots)
    return out


def forgets_to_keep_the_last_token(q, k, v, k_cache, v_cache, slots, *where):
    """Has it at hand for this step, so that the result is right."""
    out = dense(q, k, v, k_cache.clone(), v_cache.clone(), slots, *where)
    write(k[:-1], k_cache, slots[:-1]), write(v[:-1], v_cache, slots[:-1])
    return out


def writes_its_neighbour_too(q, k, v, k_cache, v_cache, slots, *where):
    out = dense(q, k, v, k_cache, v_cache, slots, *where)
    k_cache[-2, :, -1] = 0  # the slot before the dummy block
    return out


def writes_whole_blocks(q, k, v, k_cache, v_cache, slots, *where):
    """Clears the slots behind the tokens, where nothing is read."""
    out = dense(q, k, v, k_cache, v_cache, slots, *where)
    k_cache.nan_to_num_(0)
    return out


def hands_query_heads_round(q, *others):
    """Query head h to KV head h % H_kv."""
    num_kv_heads = others[0].size(1)
    turned = q.unflatten(1, (-1, num_kv_heads)).transpose(1, 2).flatten(1, 2)
    return dense(turned, *others).unflatten(1, (num_kv_heads, -1)).transpose(1, 2).flatten(1, 2)


def reads_blocks_in_the_pools_order(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables):
    write(k, k_cache, slots), write(v, v_cache, slots)
    used = (context_lens + k_cache.size(2) - 1) // k_cache.size(2)
    ordered = tables.clone()
    for row, n in zip(ordered, used.tolist(), strict=True):
        row[:n] = row[:n].sort().values
    return attend(q, k_cache, v_cache, query_start, context_lens, ordered)


def scales_the_query_in_place(q, *others):
    out = dense(q, *others)
    q.mul_(2)
    return out


def returns_fp64(q, *others):
    return dense(q, *others).double()


def multiplies_masked_values_by_zero(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables):
    """0 x NaN is NaN: whoever masks weights alone lets an unwritten slot show."""
    out = dense(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables)
    last = v_cache[tables.long()].sum((1, 3))  # [B, H_kv, D]
    sequence = torch.arange(len(tables)).repeat_interleave(query_start.diff().long())
    return out + 0 * last[sequence].repeat_interleave(q.size(1) // k.size(1), dim=1)


RIGHT_FOR_DECODE = (sees_its_whole_chunk, positions_of_a_chunk_start_at_its_end, ignores_query_start)
WRONG = (
    *RIGHT_FOR_DECODE, reads_one_slot_too_many, does_not_see_itself, forgets_the_scale, attends_before_it_writes,
    forgets_to_keep_the_last_token, writes_its_neighbour_too, writes_whole_blocks, hands_query_heads_round,
    reads_blocks_in_the_pools_order, scales_the_query_in_place, returns_fp64, multiplies_masked_values_by_zero,
)  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_attention_is_found_by_every_kind_of_batch(wrong):
    verdicts = {kind: judge(wrong, dense, flat_case(lens, group=2)).verdict for kind, lens in batches(16).items()}
    right = {kind for kind, verdict in verdicts.items() if not verdict.startswith("wrong: ")}
    assert right == ({"decode"} if wrong in RIGHT_FOR_DECODE else set()), verdicts
