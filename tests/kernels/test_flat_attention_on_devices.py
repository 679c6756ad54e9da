"""Attention over flat batches: every backend on every hard case, and wrong attentions, which the cases have to name."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from devices import CUDA, DTYPES
from tiers import in_every_run

from roseinfer.kernels import attention_tilings, paged_triton, triton_mode
from roseinfer.kernels.attention_tilings import SCRATCH_ROWS, Tiling, attend_launches
from roseinfer.kernels.flat_cases import CASES, batches, flat_case, judge
from roseinfer.kernels.paged_numba import paged_attention_numba
from roseinfer.kernels.paged_reference import paged_attention_reference
from roseinfer.kernels.paged_triton import TritonAttention

pytestmark = pytest.mark.slow


BACKENDS = [
    paged_attention_reference,
    paged_attention_numba,
    pytest.param(TritonAttention(), marks=pytest.mark.needs_triton),
    pytest.param(TritonAttention(in_one_launch=True), marks=pytest.mark.needs_triton),
]


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


NAMES = ["reference", "numba", "triton", "triton in one launch"]
every_backend = pytest.mark.parametrize("attention", BACKENDS, ids=NAMES)


# With 16 bits, loads and stores are what differs: a part of the cases shows it.
CASES_AND_DTYPES = {f"{name}-{torch.float32}": (name, torch.float32) for name in CASES} | {
    f"{name}-{dtype}": (name, dtype)
    for name in CASES
    if name.startswith(("decode", "mixed")) and name.endswith(("of 64, blocks of 16", "of 80, blocks of 16"))
    for dtype in DTYPES[1:]
}
# In Triton's interpreter these take the longest, and the mixed batch of the same heads has prompts and chunks, too.
LONG = tuple(f"{kind}, 1 x 7 heads of 64, blocks of 64" for kind in ("prompts", "chunks"))
DAILY = [case for case in CASES_AND_DTYPES if not case.startswith(LONG)]


@pytest.mark.parametrize(("name", "dtype"), in_every_run(CASES_AND_DTYPES, DAILY))
@pytest.mark.parametrize("attention", [*BACKENDS[:2], BACKENDS[3]], ids=[*NAMES[:2], NAMES[3]])
def test_every_backend_on_every_case(attention, name, dtype):
    assert judge(attention, dense, flat_case(**CASES[name], dtype=dtype)).verdict == "ok"


MIXED = [case for case in CASES_AND_DTYPES if case.startswith("mixed")]


@pytest.mark.needs_triton
@pytest.mark.parametrize(("name", "dtype"), in_every_run(CASES_AND_DTYPES, MIXED))
def test_k_and_v_may_be_written_by_a_launch_of_their_own(name, dtype):
    """What attends then is the kernel of the test above."""
    assert judge(TritonAttention(), dense, flat_case(**CASES[name], dtype=dtype)).verdict == "ok"


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_of_a_gpu_on_every_case(name, dtype, device):
    case = flat_case(**CASES[name], dtype=dtype, device=device)
    for in_one_launch in (False, True):
        assert judge(TritonAttention(in_one_launch), paged_attention_reference, case).verdict == "ok"


@every_backend
def test_the_result_goes_where_it_is_asked_to_go(attention):
    case = flat_case([(3, 1), (20, 4)], group=2)
    expected = attention(*case.with_own_pool())
    out = torch.full_like(case.q, float("nan"))
    assert attention(*case.with_own_pool(), out=out) is out
    assert torch.equal(out, expected) and expected.is_contiguous()


@every_backend
def test_scores_of_any_size_stay_finite(attention):
    """exp of an unshifted score would overflow; the largest comes first for some rows and last for others.

    A score of some hundreds is itself rounded to some 1e-5 in fp32, and its weight with it.
    """
    for scale in (100.0, -100.0):
        case = flat_case([(40, 1), (30, 20), (100, 1)], group=2)
        case.q.mul_(scale)
        expected = dense(*case.with_own_pool())
        torch.testing.assert_close(attention(*case.with_own_pool()), expected, atol=1e-4, rtol=1e-4)


# The Triton kernels


GROUPS, HEAD_DIMS, BLOCK_SIZES = (1, 2, 4, 7, 8, 64), (8, 32, 64, 80, 96, 128, 256), (1, 16, 64, 256)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("num_seqs", [1, 2, 64])
@pytest.mark.parametrize("max_query_len", [1, 5, 512])
def test_a_grid_covers_every_query_and_tiles_fit(max_query_len, num_seqs, itemsize):
    num_tokens = num_seqs - 1 + max_query_len
    for group, head_dim, block_size in product(GROUPS, HEAD_DIMS, BLOCK_SIZES):
        launches = attend_launches(
            num_tokens, num_seqs, max_query_len, 2, group, head_dim, block_size, 4096 // block_size, itemsize
        )
        assert [one.options["TILE_TOKENS"] == 1 for one in launches] == (
            [True] if max_query_len == 1 else [False] if num_seqs == 1 else [True, False]
        )  # which is how the kernel knows a launch of decodes
        for (tiles, heads, splits), shape in launches:
            for name in ("ROWS", "TILE", "DIM_PAD", "num_warps"):
                assert shape[name].bit_count() == 1, (name, shape)
            tokens = shape["TILE_TOKENS"]
            assert tokens * group <= shape["ROWS"] and shape["DIM_PAD"] >= head_dim
            assert shape["ROWS"] == 1 or min(shape["ROWS"], shape["TILE"], shape["DIM_PAD"]) >= 16  # for tl.dot
            assert heads == 2 and (splits > 1) == (shape["SPLIT_TOKENS"] > 0)
            assert splits == 1 or tiles * heads * splits * tokens * group <= SCRATCH_ROWS  # what is kept of the splits
            assert shape["AMONG_CHUNKS"] == (tokens == 1 and len(launches) > 1) and tiles >= num_seqs


@pytest.mark.parametrize(("group", "rows"), [(1, 16), (4, 32), (7, 64)])
def test_rows_of_a_chunk_follow_its_longest_sequence(group, rows):
    """And not the average: decodes beside a chunk of 512 tokens leave it the most rows."""
    for num_tokens, num_seqs, max_query_len, wanted in ((320, 64, 5, rows), (576, 65, 512, 128)):
        _, (_, shape) = attend_launches(num_tokens, num_seqs, max_query_len, 2, group, 64, 16, 64, 2)
        assert shape["ROWS"] == wanted
        decodes, _ = attend_launches(num_tokens, num_seqs, max_query_len, 2, group, 64, 16, 64, 2)
        [alone] = attend_launches(num_seqs, num_seqs, 1, 2, group, 64, 16, 64, 2)
        assert decodes == alone._replace(options=alone.options | {"AMONG_CHUNKS": True})


@pytest.mark.parametrize(
    ("num_seqs", "num_kv_heads", "capacity", "is_split"),
    [(1, 4, 32768, True), (1, 4, 64, False), (8, 2, 32768, True), (512, 12, 32768, False)],
)
@pytest.mark.parametrize("group", [1, 7])
def test_a_context_is_split_while_programs_are_few_and_it_may_be_long(
    num_seqs, num_kv_heads, capacity, is_split, group
):
    [(grid, _)] = attend_launches(num_seqs, num_seqs, 1, num_kv_heads, group, 128, 1, capacity, 2)
    assert (grid[2] > 1) == is_split


def test_the_cases_meet_every_path_of_the_kernel():
    """A sum or a dot, a tile of a sequence's queries or more, one of its tokens or more, split or not, mixed or not."""
    paths = set()
    for arguments in CASES.values():
        case = flat_case(**arguments)
        group, columns, (num_tokens, num_seqs) = arguments["group"], case.block_tables.size(1), sizes_of(case)
        launches = attend_launches(
            num_tokens, num_seqs, num_tokens - num_seqs + 1, case.k.size(1), group, case.q.size(2), case.block_size,
            columns, 4,
        )  # fmt: skip
        mixed = len(launches) > 1
        for grid, shape in launches:
            decode, split = shape["TILE_TOKENS"] == 1, grid[2] > 1
            lengths = case.query_start.diff()
            served = (lengths == 1) == decode if mixed else lengths > 0
            if not served.any():
                continue
            several = int(case.context_lens[served].max()) > shape["TILE"]
            paths.add(("rows", min(shape["ROWS"], 2), "mixed", mixed))
            paths.add(("decode", decode, "split", split, "several tiles", several, "mixed", mixed))
            paths.add(("query tiles", int(lengths[served].max()) > shape["TILE_TOKENS"]))
    assert {("query tiles", True), ("query tiles", False)} <= paths
    assert {("rows", rows, "mixed", mixed) for rows, mixed in product((1, 2), (True, False))} <= paths
    for several, mixed in product((True, False), repeat=2):
        assert ("decode", True, "split", True, "several tiles", several, "mixed", mixed) in paths
    for split, several in ((True, True), (True, False), (False, True)):
        assert ("decode", False, "split", split, "several tiles", several, "mixed", True) in paths


def sizes_of(case):
    return len(case.q), len(case.block_tables)


SPLITS = {
    f"{splits} splits, {new} new, group of {group}": (splits, new, group)
    for splits, new, group in product((2, 5), ((1,), (2,), (12,), (1, 12)), (1, 7))
}
DAILY_SPLITS = [
    "2 splits, (1,) new, group of 1", "2 splits, (12,) new, group of 7", "5 splits, (1, 12) new, group of 7"
]  # fmt: skip


@pytest.mark.needs_triton
@pytest.mark.parametrize(("splits", "new", "group"), in_every_run(SPLITS, DAILY_SPLITS))
def test_splits_of_every_length_add_up(monkeypatch, splits, new, group, device):
    """Lengths on all sides of a split's border. Every token is read once, and nothing is left for the next launch."""

    launch_of = attention_tilings.launch_of

    def small_splits(tiling, tile_tokens, tiles, *others):
        small = Tiling(tiling.rows, tile=16, stages=2, warps=4, programs=splits * tiles, split_tokens=32)
        return launch_of(small, tile_tokens, tiles, *others)

    monkeypatch.setattr(attention_tilings, "launch_of", small_splits)
    cached = [max(0, n * 32 + beside) for n in range(6) for beside in (-1, 0, 1)]
    sequences = [(n, new[i % len(new)]) for i, n in enumerate(cached)]
    case = flat_case(sequences, group=group, num_kv_heads=1, device=device)
    attention = TritonAttention(in_one_launch=True)
    for _ in range(2):
        assert judge(attention, paged_attention_reference, case).verdict == "ok"
        *_, counters = attention.scratch[32]
        assert all(one.grid[2] in (2, splits) for one in attention.launches) and not counters.any()


NEW = {f"{new} new, group of {group}": (new, group) for new, group in product((1, 70), (1, 7))}


@pytest.mark.needs_triton
@pytest.mark.parametrize(("new", "group"), in_every_run(NEW, ["1 new, group of 7", "70 new, group of 1"]))
def test_new_tokens_are_seen_without_the_pool(new, group):
    """Programs run one after another in the interpreter, where a slot may be written already; on a GPU they race."""
    case = flat_case([(0, new), (600, new), (15, new)], group=group)
    elsewhere = case._replace(slot_mapping=torch.full_like(case.slot_mapping, (len(case.k_cache) - 1) * 16))
    attention = TritonAttention(in_one_launch=True)
    assert torch.equal(attention(*elsewhere.with_own_pool()), attention(*case.with_own_pool()))


FILLED = {
    "decodes before chunks": ([(3, 1), (40, 1), (0, 1), (20, 9), (0, 40)], 2, 0, 3),
    "chunks before decodes, a padding sequence": ([(20, 9), (17, 2), (16, 1), (300, 1)], 1, 5, 3),
    "one chunk and a padding sequence": ([(18, 5)], 7, 1, 1),
    "one decode and a long padding sequence": ([(18, 1)], 7, 30, 1),
    "verified drafts": ([(30, 5), (1, 1), (15, 5), (16, 3)], 2, 12, 4),
}


@pytest.mark.needs_triton
@pytest.mark.parametrize(("sequences", "group", "tokens", "num_seqs"), FILLED.values(), ids=FILLED)
@pytest.mark.parametrize("in_one_launch", [True, False])
def test_a_filled_up_batch_gets_what_it_gets_alone(sequences, group, tokens, num_seqs, in_one_launch, device):
    """A step in a graph ends with a padding sequence of any length, and sequences without tokens after it."""
    attention = TritonAttention(in_one_launch)
    longest = max(new for _, new in sequences)

    def filled(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables):
        dummy = len(k_cache) - 1
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, tokens), value=1e3) for x in (q, k, v))
        slots = F.pad(slots, (0, tokens), value=dummy * k_cache.size(2))
        query_start = F.pad(query_start, (0, num_seqs), value=len(q))
        context_lens = F.pad(context_lens, (0, num_seqs))
        context_lens[len(sequences)] = tokens
        tables = F.pad(tables, (0, 0, 0, num_seqs), value=dummy)
        where = k_cache, v_cache, slots, query_start, context_lens, tables
        out = attention(q, k, v, *where, max_query_len=max(2, longest))
        return out[: len(q) - tokens]

    case = flat_case(sequences, group=group, device=device)
    assert judge(filled, paged_attention_reference, case).verdict == "ok"


@pytest.mark.needs_triton
def test_the_longest_sequence_changes_the_launches_and_not_the_result():
    """It may be given too large, and too small, but for 1; a layer that asks for the same again checks nothing."""
    case = flat_case([(20, 1), (3, 4), (0, 9)], group=2)
    attention, rows = TritonAttention(in_one_launch=True), []
    for max_query_len in (None, 2, 9, 200):

        def of_length(*tensors, n=max_query_len):
            return attention(*tensors, max_query_len=n)

        assert judge(of_length, paged_attention_reference, case).verdict == "ok"
        rows.append([one.options["ROWS"] for one in attention.launches])
    assert rows == [[16, 32], [16, 16], [16, 32], [16, 32]]
    launches = attention.launches
    of_length(*case.with_own_pool())
    assert attention.launches is launches


@pytest.mark.parametrize("attention", BACKENDS[1:3], ids=NAMES[1:3])
def test_rows_of_one_sequence_see_each_other(attention, device):
    """Stage 19 verifies a draft as rows that share a table: each sees those before it, wherever they stand."""
    device = "cpu" if attention is paged_attention_numba else device
    case = flat_case([(20, 5)], group=2, device=device)
    backwards = torch.arange(4, -1, -1, device=device)
    rows = case._replace(
        **{name: getattr(case, name)[backwards] for name in ("q", "k", "v", "slot_mapping")},
        query_start=torch.arange(6, dtype=torch.int32, device=device),
        context_lens=(21 + backwards).int(),
        block_tables=case.block_tables.repeat(5, 1),
    )
    wanted = paged_attention_reference(*case.with_own_pool())[backwards]
    assert torch.allclose(attention(*rows.with_own_pool()), wanted, atol=1e-5)


@pytest.mark.needs_triton
def test_a_captured_launch_keeps_its_memory():
    """A CUDA graph has its addresses, so what a later call needs is added, and nothing moves."""
    attention = TritonAttention()
    addresses = {}
    for head_dim, sequences in ((32, [(3, 1)]), (64, [(40, 1)]), (32, [(700, 1), (0, 40)])):
        attention(*flat_case(sequences, head_dim=head_dim))
        now = {(dim, i): x.data_ptr() for dim, xs in attention.scratch.items() for i, x in enumerate(xs)}
        assert addresses.items() <= now.items()
        addresses = now


@pytest.mark.needs_triton
def test_what_is_launched_does_not_depend_on_lengths(monkeypatch):
    """A graph that was captured with one set of lengths is replayed with any other."""
    launches = []

    class Recorded:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            def launch(*args, **constexprs):
                plain = tuple(x for x in args if not isinstance(x, torch.Tensor))
                launches.append((grid, plain, tuple(constexprs.items())))
                self.kernel[grid](*args, **constexprs)

            return launch

    monkeypatch.setattr(paged_triton, "attend_kernel", Recorded(paged_triton.attend_kernel))
    attention = TritonAttention(in_one_launch=True)

    def launched(sequences, columns):
        case = flat_case(sequences, group=2, spare_columns=columns - max(-(-sum(lens) // 16) for lens in sequences))
        launches.clear()
        assert judge(attention, dense, case).verdict == "ok"
        return list(launches)

    decodes = [launched([(n, 1), (m, 1)], 32) for n, m in ((0, 0), (300, 3), (16, 511))]
    assert decodes[0] == decodes[1] == decodes[2] and len(decodes[0]) == 1
    for columns in (32, 15):
        mixed = [launched([(n, 12), (m, 1), (7, 7)], columns) for n, m in ((0, 0), (200, 3))]
        mixed.append(launched([(0, 1), (220, 1), (7, 18)], columns))
        assert mixed[0] == mixed[1] == mixed[2] and len(mixed[0]) == 2


@pytest.mark.parametrize(
    ("mode", "capability", "overlap"),
    [("compile", (9, 0), True), ("compile", (10, 0), True), ("compile", (8, 6), False), ("interpret", (9, 0), False)],
)
def test_launches_overlap_where_the_gpu_can(monkeypatch, mode, capability, overlap):
    monkeypatch.setattr(triton_mode, "MODE", mode)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    options = triton_mode.pdl_options.__wrapped__()
    assert options == ({"PDL": True, "launch_pdl": True} if overlap else {"PDL": False})


@pytest.mark.needs_triton
@pytest.mark.parametrize("group", [1, 7])
def test_a_program_writes_the_rows_of_its_own_tokens_alone(monkeypatch, group):
    """Programs run one after another in the interpreter, where the right one may come last; on a GPU they race."""
    kernel = paged_triton.attend_kernel

    class FirstTile:
        def __getitem__(self, grid):
            return kernel[(1, *grid[1:])]

    monkeypatch.setattr(paged_triton, "attend_kernel", FirstTile())
    case = flat_case([(5, 40)], group=group, num_kv_heads=2)
    [(_, shape)] = attend_launches(40, 1, 40, 2, group, 32, 16, case.block_tables.size(1), 4)
    tile_tokens = shape["TILE_TOKENS"]
    out = TritonAttention()(*case, out=torch.full_like(case.q, float("nan")))
    assert 1 < tile_tokens < 40 and out[:tile_tokens].isfinite().all() and out[tile_tokens:].isnan().all()


@pytest.mark.needs_triton
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("k_cache", lambda x: x[:, :, :12], "block_size must be a power of two for this kernel, got 12"),
        ("v_cache", lambda x: x[:, :1], r"v_cache must be of shape \(\d+, 2, 16, 32\), got \(\d+, 1, 16, 32\)"),
        ("v_cache", lambda x: x.mT.contiguous().mT, r"v_cache must be contiguous, got strides"),
        ("q", lambda x: x[:, :3], "q must have a multiple of the 2 KV heads, got 3 heads"),
        ("q", lambda x: x.mT.contiguous().mT, "q must be contiguous in its last dimension"),
        ("k", lambda x: x[1:], r"k must be of shape \(5, 2, 32\), got \(4, 2, 32\)"),
        ("v", lambda x: x.half(), "v must be torch.float32, as q is, got torch.float16"),
        ("slot_mapping", lambda x: x.long(), "slot_mapping must be torch.int32, got torch.int64"),
        ("query_start", lambda x: x[1:], r"query_start must be of shape \(3,\), got \(2,\)"),
        ("context_lens", lambda x: x.repeat_interleave(2)[::2], "context_lens must be contiguous, got strides"),
        ("block_tables", lambda x: x.t().contiguous().t(), "block_tables must be contiguous in its last dimension"),
    ],
)
def test_tensors_that_the_kernels_cannot_read_are_refused(name, change, message):
    case = flat_case([(3, 1), (20, 4)], group=2)
    wrong = case._replace(**{name: change(getattr(case, name))})
    attention = TritonAttention()
    attention(*case.with_own_pool())  # tensors of one layout are checked once, and those of another again
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            attention(*wrong)
    with pytest.raises(ValueError, match=r"out must be of shape \(5, 4, 32\), got \(5, 4, 16\)"):
        attention(*case, out=torch.empty(5, 4, 16))
    for too_few in (1, 0):
        with pytest.raises(ValueError, match=f"must be at least 2 for 5 tokens of 2 sequences, got {too_few}"):
            attention(*case, max_query_len=too_few)


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
    """Clears the slots after the tokens, where nothing is read."""
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
    """0 x NaN is NaN: an attention that masks weights alone lets an unwritten slot show."""
    out = dense(q, k, v, k_cache, v_cache, slots, query_start, context_lens, tables)
    last = v_cache[tables.long()].sum((1, 3))  # [B, H_kv, D]
    sequence = torch.arange(len(tables)).repeat_interleave(query_start.diff().long())
    return out + 0 * last[sequence].repeat_interleave(q.size(1) // k.size(1), dim=1)


RIGHT_FOR_DECODE = (sees_its_whole_chunk, positions_of_a_chunk_start_at_its_end, ignores_query_start)
WRONG = (
    *RIGHT_FOR_DECODE,
    reads_one_slot_too_many,
    does_not_see_itself,
    forgets_the_scale,
    attends_before_it_writes,
    forgets_to_keep_the_last_token,
    writes_its_neighbour_too,
    writes_whole_blocks,
    hands_query_heads_round,
    reads_blocks_in_the_pools_order,
    scales_the_query_in_place,
    returns_fp64,
    multiplies_masked_values_by_zero,
)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_attention_is_found_by_every_kind_of_batch(wrong):
    verdicts = {kind: judge(wrong, dense, flat_case(lens, group=2)).verdict for kind, lens in batches(16).items()}
    right = {kind for kind, verdict in verdicts.items() if not verdict.startswith("wrong: ")}
    assert right == ({"decode"} if wrong in RIGHT_FOR_DECODE else set()), verdicts
