"""Hard cases for attention over flat batches, and the judge that every backend is held to.

    for name, arguments in CASES.items():
        print(name, judge(paged_attention_numba, paged_attention_reference, flat_case(**arguments)))

A flat batch: the new tokens of all sequences lie one after another, whether a sequence brings one (decode), its
prompt, or a chunk of it. The attention writes their K and V into the pool first, and then attends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

ATOL = 2e-5  # sums in fp32, whose order is up to the backend


class FlatCase(NamedTuple):
    """The arguments of an attention over a flat batch, in its order; `attention(*case)` calls it.

    q [N, H, D]; k, v [N, H_kv, D]; k_cache, v_cache [num_blocks, H_kv, block_size, D], of which the last block is the
    dummy one; slot_mapping [N], query_start [B + 1], context_lens [B], block_tables [B, W], all int32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor

    @property
    def block_size(self) -> int:
        return self.k_cache.size(2)

    @property
    def real(self) -> Tensor:
        """Mask of the tokens that are no padding, [N] bool: those that are not written to the dummy block."""
        return self.slot_mapping // self.block_size != len(self.k_cache) - 1

    def with_own_pool(self, dtype: torch.dtype | None = None) -> FlatCase:
        """Return the case with its own copy of the pool, since attention writes to it. dtype: None keeps the case's."""
        floats = {name: getattr(self, name) for name in ("q", "k", "v", "k_cache", "v_cache")}
        if dtype is not None and dtype != self.q.dtype:
            return self._replace(**{name: x.to(dtype) for name, x in floats.items()})
        return self._replace(k_cache=self.k_cache.clone(), v_cache=self.v_cache.clone())

    def written(self) -> FlatCase:
        """Return the case as attention must leave it: K and V of every real token in its slot, all else as before."""
        done, real = self.with_own_pool(), self.real
        slots = self.slot_mapping[real].long()
        for cache, new in ((done.k_cache, self.k), (done.v_cache, self.v)):
            cache[slots // self.block_size, :, slots % self.block_size] = new[real]
        return done


def flat_case(
    sequences: Sequence[tuple[int, int]],
    *,
    num_kv_heads: int = 2,
    group: int = 1,
    head_dim: int = 32,
    block_size: int = 16,
    padding: int = 0,
    shared_blocks: int = 0,
    spare_columns: int = 2,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    seed: int = 0,
) -> FlatCase:
    """Return a seeded batch in which sequence i = (cached, new) has `cached` tokens in the pool and brings `new` >= 1.

    group: query heads on each KV head. padding: sequences at the end that bring one token for the dummy block, as a
    batch that is padded to a bucket has them. shared_blocks: that many first blocks are the same for all sequences that
    have them cached in full, as a shared prompt has them. spare_columns: columns of the tables after the longest row.

    Blocks lie in random order all over the pool. Every slot that holds no token is NaN, and so is block 0, which the
    tables name after a sequence's last block. The tables are a cut of wider rows, q, k and v cuts of one tensor.
    """
    generator = torch.Generator().manual_seed(seed)
    totals = [cached + new for cached, new in sequences]
    used = [-(-n // block_size) for n in totals]
    num_blocks = 1 + sum(used) + 1  # the first stays NaN, the last is the dummy one
    unused = (1 + torch.randperm(sum(used), generator=generator)).tolist()
    cache = torch.full((2, num_blocks, num_kv_heads, block_size, head_dim), float("nan"))
    width = max([1, *used]) + spare_columns
    tables = torch.zeros(len(sequences) + padding, width + 3, dtype=torch.int32)
    shared: dict[int, int] = {}  # index -> the block that all sequences have there
    slots: list[int] = []
    for row, (cached, new) in enumerate(sequences):
        for index in range(used[row]):
            filled = max(0, min(block_size, cached - index * block_size))
            may_share = index < shared_blocks and filled == block_size
            block = shared[index] if may_share and index in shared else unused.pop()
            if may_share:
                shared[index] = block
            tables[row, index] = block
            cache[:, block, :, :filled] = torch.randn(2, num_kv_heads, filled, head_dim, generator=generator)
        positions = range(cached, cached + new)
        slots += [int(tables[row, p // block_size]) * block_size + p % block_size for p in positions]
    tables[len(sequences) :, 0] = num_blocks - 1
    slots += [(num_blocks - 1) * block_size] * padding

    lens = [new for _, new in sequences] + [1] * padding
    qkv = torch.randn(sum(lens), (group + 2) * num_kv_heads, head_dim, generator=generator).to(device, dtype)
    q, k, v = qkv.split([group * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    k_cache, v_cache = cache.to(device, dtype)
    int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
    query_start = torch.tensor([0, *lens]).cumsum(0).to(**int32)
    return FlatCase(
        q,
        k,
        v,
        k_cache,
        v_cache,
        torch.tensor(slots, **int32),
        query_start,
        torch.tensor(totals + [1] * padding, **int32),
        tables.to(device)[:, :width],
    )


def batches(block_size: int) -> dict[str, list[tuple[int, int]]]:
    """Return (cached, new) of the sequences of each kind of batch, on all sides of a block's edge."""
    b = block_size
    kinds = {
        "decode": [(cached, 1) for cached in (0, 1, b - 1, b, b + 1, 4 * b)],
        "prompts": [(0, new) for new in (1, b - 1, b, b + 1, 4 * b)],
        "chunks": [(1, b), (b - 1, 2), (b, b), (b + 1, 2 * b - 1), (4 * b, 3), (4 * b - 1, 1)],
        "mixed": [(0, b + 1), (4 * b, 1), (b - 1, b + 1), (0, 1), (b, 1), (1, 4 * b), (2 * b, 1)],
    }
    return {kind: [(cached, new) for cached, new in found if new > 0] for kind, found in kinds.items()}


LONGEST = 1024  # tokens
# KV heads, query heads on each, head size, block size.
SHAPES = ((2, 1, 64, 16), (1, 7, 64, 64), (2, 4, 80, 16), (1, 4, 128, 16), (3, 1, 32, 1), (1, 7, 80, 1))


def cases() -> dict[str, dict[str, Any]]:
    """Return arguments of flat_case by name, without dtype and device: every kind of batch in every shape."""
    found = {}
    for num_kv_heads, group, head_dim, block_size in SHAPES:
        shape = {"num_kv_heads": num_kv_heads, "group": group, "head_dim": head_dim, "block_size": block_size}
        for kind, sequences in batches(block_size).items():
            name = f"{kind}, {num_kv_heads} x {group} heads of {head_dim}, blocks of {block_size}"
            found[name] = {"sequences": sequences, **shape, "shared_blocks": 2}
            if kind in ("decode", "chunks"):  # tables with room for the longest, as buffers that are kept have them
                found[name]["spare_columns"] = LONGEST // block_size
            if kind == "decode":
                found[name]["padding"] = 2
    return found


CASES = cases()


class Judgement(NamedTuple):
    """The verdict on one case: "ok", or what is wrong. max_error: the largest error, None if not computed."""

    verdict: str
    max_error: float | None = None


def judge(attention: Callable[..., Tensor], reference: Callable[..., Tensor], case: FlatCase) -> Judgement:
    """Judge whether attention(*case) returns what the reference does, writes K and V of every token, and nothing else.

    The reference is run in fp32 on the same values. The allowed error is ATOL, and what rounding to the dtype costs: a
    weight of the softmax and the result may each be off by eps / 2, which together is at most eps times the sum of
    |weight * v|. What padding returns, and what it leaves in the dummy block, is not looked at. `case` stays as it is.
    """
    given, after = case.with_own_pool(), case.written()
    got = attention(*given)
    if (got.shape, got.dtype) != (case.q.shape, case.q.dtype):
        want = f"{tuple(case.q.shape)} {case.q.dtype}"
        return Judgement(f"wrong: returned {tuple(got.shape)} {got.dtype}, not {want}")
    for name in case._fields:
        if count := different(getattr(given, name), getattr(after, name), pool=name.endswith("cache")):
            return Judgement(f"wrong: {count} values of {name} are not what they have to be afterwards")

    in_fp32, real = case.with_own_pool(torch.float32), case.real
    expected = reference(*in_fp32)[real]
    absolute = in_fp32._replace(v=in_fp32.v.abs(), v_cache=in_fp32.v_cache.abs())
    allowed = ATOL + torch.finfo(case.q.dtype).eps * reference(*absolute)[real]
    error = (got.to(expected.dtype)[real] - expected).abs()
    if not error.isfinite().all():
        return Judgement("wrong: not finite")
    wrong, max_error = int((error > allowed).sum()), float(error.max())
    return Judgement(f"wrong: {wrong} of {error.numel()} values are too far off" if wrong else "ok", max_error)


def different(got: Tensor, expected: Tensor, pool: bool) -> int:
    """Count the values that differ, with NaN equal to NaN; pool: leave out the last block, the dummy one."""
    if pool:
        got, expected = got[:-1], expected[:-1]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[got.element_size()]
    return int((got.view(bits) != expected.view(bits)).sum())
