"""Attention over block tables: the torch reference against plain softmax, the compiled ones against the reference."""

from __future__ import annotations

import json

import pytest
import torch
from devices import CUDA
from fresh_python import printed_by
from tiers import in_every_run

from roseinfer.kernels import triton_mode
from roseinfer.kernels.cases import paged_case
from roseinfer.kernels.flat_cases import ATOL
from stages import LADDER
from stages.s05_block_table import paged_attention_reference
from stages.s07_triton_paged import TritonPaged, paged_attention_triton, program_shape
from stages.s09_numba_paged import paged_attention_numba

pytestmark = pytest.mark.slow


# KV heads, query heads on each, head size, block size
SHAPES = [
    (3, 1, 32, 16),
    (2, 7, 64, 32),
    (12, 1, 64, 64),
    (2, 2, 80, 16),
    (1, 4, 80, 128),
    (1, 3, 96, 64),
    (4, 2, 96, 16),
    (2, 8, 128, 32),
    (1, 1, 128, 128),
]
COMPILED = [pytest.param(paged_attention_triton, marks=pytest.mark.needs_triton), paged_attention_numba]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def ragged(block_size: int) -> list[int]:
    """Nothing cached yet, one token, both sides of a block's edge, a full table and a long tail."""
    return [0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size, 3 * block_size - 2]


# Every pair of head size and group, with block sizes in turn. All triples would compile four times as many kernels.
GRID = [
    (2, group, head_dim, (16, 32, 64, 128)[(i + j) % 4])
    for i, head_dim in enumerate((32, 64, 80, 96, 128))
    for j, group in enumerate((1, 2, 4, 7, 8))
]


def case(shape, lens, dtype=torch.float32, device="cpu"):
    """A paged_case, and after a sequence's own blocks its table names blocks that do not exist."""
    num_kv_heads, group, head_dim, block_size = shape
    case = paged_case(
        lens,
        num_kv_heads=num_kv_heads,
        group=group,
        head_dim=head_dim,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )
    columns = torch.arange(case.block_table.size(1), device=device) * block_size
    case.block_table[columns >= case.context_lens[:, None]] = 10**6
    return case


def test_a_case_is_hard():
    """NaN wherever no token was written, shuffled blocks, and q, k, v that are not contiguous."""
    q, k, v, k_cache, v_cache, table, lens = case((2, 3, 8, 16), ragged(16), torch.bfloat16)
    written = k_cache.isfinite().all(dim=-1).all(dim=-1)  # [num_blocks, block_size]
    assert torch.equal(written, v_cache.isfinite().all(dim=-1).all(dim=-1))
    assert written.sum() == sum(ragged(16)) == lens.sum()
    blocks = table[-1].tolist()  # of the longest, 46 tokens in 3 blocks
    assert blocks[3:] == [10**6] and written[blocks[2]].sum() == 14 and blocks[:3] != sorted(blocks[:3])
    assert not any(x.is_contiguous() for x in (q, k, v)) and {x.dtype for x in (q, k_cache)} == {torch.bfloat16}


def plain_softmax(q, k, v, k_cache, v_cache, table, lens):
    """Every sequence on its own, gathered into one piece, in fp64."""
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = q.size(1) // num_kv_heads
    rows = []
    for i, n in enumerate(lens.tolist()):
        blocks = table[i, : -(-n // block_size)].tolist()
        keys, values = (
            torch.cat([*(cache[b] for b in blocks), new[i : i + 1]][: len(blocks)])[:n] if blocks else new[:0]
            for cache, new in ((k_cache, k), (v_cache, v))
        )
        keys, values = torch.cat([keys, k[i : i + 1]]).double(), torch.cat([values, v[i : i + 1]]).double()
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", q[i].double(), keys) * q.size(-1) ** -0.5
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), values))
    return torch.stack(rows)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_reference_is_plain_softmax(shape, dtype):
    arguments = case(shape, ragged(shape[-1]), dtype)
    got = paged_attention_reference(*arguments)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), plain_softmax(*arguments), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


# With 16 bits, loads and stores are what differs: two shapes show it.
SHAPES_AND_DTYPES = {f"{shape}-{dtype}": (shape, dtype) for shape in SHAPES for dtype in TOLERANCE}
DAILY = [name for name, (shape, dtype) in SHAPES_AND_DTYPES.items() if dtype == torch.float32 or shape in SHAPES[1:4:2]]


@pytest.mark.parametrize(("shape", "dtype"), in_every_run(SHAPES_AND_DTYPES, DAILY))
@pytest.mark.parametrize("attention", COMPILED)
def test_what_is_compiled_equals_the_reference(attention, shape, dtype):
    require_the_references(attention, case(shape, ragged(shape[-1]), dtype))


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("shape", SHAPES + GRID, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_kernel_of_a_gpu_equals_the_reference(shape, dtype, device):
    require_the_references(paged_attention_triton, case(shape, ragged(shape[-1]), dtype, device))


def require_the_references(attention, arguments):
    got, dtype = attention(*arguments), arguments.q.dtype
    assert got.dtype == dtype and got.is_contiguous()
    # A GPU's exp is further off than a CPU's.
    tolerance = max(TOLERANCE[dtype], ATOL if got.device.type == "cuda" else 0)
    torch.testing.assert_close(got, paged_attention_reference(*arguments), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("attention", [paged_attention_reference, *COMPILED])
def test_scores_of_any_size_stay_finite(attention):
    """exp of an unshifted score would overflow; the largest comes first here, last there.

    A score of some hundreds is itself rounded to some 1e-5 in fp32, and its weight with it.
    """
    q, k, v, *rest = case((2, 2, 32, 16), [40, 40])
    for scale in (100.0, -100.0):
        arguments = (q * scale, k, v, *rest)
        expected = plain_softmax(*arguments)
        torch.testing.assert_close(attention(*arguments).double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("attention", [paged_attention_reference, *COMPILED])
def test_tables_may_be_any_view(attention):
    q, k, v, k_cache, v_cache, table, lens = case((2, 2, 32, 16), ragged(16))
    expected = attention(q, k, v, k_cache, v_cache, table, lens)
    wide = torch.full((3, len(lens), 9), 10**6, dtype=torch.int32)
    wide[1, :, : table.size(1)] = table
    turned = table.t().contiguous().t()
    for view in (wide[1, :, : table.size(1)], turned):
        assert not view.is_contiguous()
        torch.testing.assert_close(attention(q, k, v, k_cache, v_cache, view, lens), expected, atol=2e-6, rtol=2e-6)


@pytest.mark.needs_triton
def test_layouts_that_the_kernel_cannot_read_are_refused():
    q, k, v, k_cache, v_cache, table, lens = case((2, 2, 32, 16), [3])
    with pytest.raises(ValueError, match="block_size must be a power of two.*12"):
        paged_attention_triton(q, k, v, k_cache[:, :12], v_cache[:, :12], table, lens)
    with pytest.raises(ValueError, match="equal strides"):
        paged_attention_triton(q, k, v, k_cache, v_cache.transpose(0, 1).contiguous().transpose(0, 1), table, lens)
    with pytest.raises(ValueError, match="q must be contiguous in its last dimension"):
        paged_attention_triton(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, k_cache, v_cache, table, lens)


@pytest.mark.parametrize(("num_kv_heads", "group"), [(12, 1), (2, 7), (1, 8), (8, 4)])
@pytest.mark.parametrize("head_dim", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("block_size", [4, 16, 128])
def test_a_tile_never_crosses_a_block_and_covers_every_head(num_kv_heads, group, head_dim, block_size):
    for interpreted in (True, False):
        shape = program_shape(num_kv_heads, group, head_dim, block_size, interpreted)
        assert block_size % shape["TILE"] == 0
        assert shape["GROUP_PAD"] >= group and shape["DIM_PAD"] >= head_dim
        assert all(shape[name].bit_count() == 1 for name in ("HEADS", "GROUP_PAD", "DIM_PAD", "TILE", "num_warps"))
    assert program_shape(num_kv_heads, group, head_dim, block_size, True)["HEADS"] >= num_kv_heads


@pytest.mark.parametrize(
    ("environ", "has_gpu", "mode"),
    [
        ({}, False, "interpret"),
        ({}, True, "compile"),
        ({"TRITON_INTERPRET": "1"}, True, "interpret"),
        ({"TRITON_INTERPRET": "0"}, False, "interpret"),
        ({"ROSEINFER_TRITON": "compile", "TRITON_INTERPRET": "1"}, False, "compile"),
        ({"ROSEINFER_TRITON": "interpret"}, True, "interpret"),
    ],
)
def test_where_kernels_run(environ, has_gpu, mode):
    assert triton_mode.choose_mode(environ, has_gpu) == mode


def test_an_unknown_place_is_refused():
    with pytest.raises(ValueError, match="ROSEINFER_TRITON must be one of interpret, compile, got 'gpu'"):
        triton_mode.choose_mode({"ROSEINFER_TRITON": "gpu"}, False)


@pytest.mark.needs_triton
def test_tensors_on_the_cpu_are_refused_where_kernels_are_compiled(monkeypatch, small):
    """On a machine with a GPU a model may be on its CPU all the same."""
    monkeypatch.setattr(triton_mode, "MODE", "compile")
    monkeypatch.setattr(triton_mode.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(triton_mode.torch.cuda, "get_device_capability", lambda: (9, 0))
    triton_mode.unavailable.cache_clear()
    try:
        with pytest.raises(triton_mode.TritonUnavailable, match="the tensors are on cpu: ROSEINFER_TRITON=interpret"):
            TritonPaged(small, num_blocks=4)
        assert "on cpu" in TritonPaged.why_untimed(torch.device("cpu"))
        assert TritonPaged.why_untimed(torch.device("cuda")) is None
    finally:
        triton_mode.unavailable.cache_clear()


WITHOUT_TRITON = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else find_spec(name, *a)
sys.modules["triton"] = None
from stages import LADDER, BlockTableCache, TritonPaged
from roseinfer.models import load_model
from roseinfer.kernels.triton_mode import TritonUnavailable
model = load_model("tiny")
print(len(LADDER), TritonPaged.why_untimed(model.device))
BlockTableCache(model, num_blocks=4)
try:
    TritonPaged(model, num_blocks=4)
except TritonUnavailable as error:
    print("refused:", error)
"""


@pytest.mark.nightly
def test_a_machine_without_triton_runs_everything_else_and_says_so():
    counted, refused = printed_by(WITHOUT_TRITON).splitlines()
    assert counted.startswith(f"{len(LADDER)} Triton is not installed")
    assert refused.startswith("refused: Triton is not installed")


# Every name that is a kernel in Triton's own modules, those that a method of tl.tensor keeps included, and its type.
KERNELS_OF_TRITON = """
import inspect, json, sys
kinds = ("JITFunction", "InterpretedFunction")
found = {}
for module in [m for name, m in sorted(sys.modules.items()) if name.startswith("triton")]:
    for name, value in list(vars(module).items()):
        found[f"{module.__name__}.{name}"] = type(value).__name__
        for method, function in vars(value).items() if inspect.isclass(value) else ():
            for cell in getattr(function, "__closure__", None) or ():
                found[f"{module.__name__}.{name}.{method}"] = type(cell.cell_contents).__name__
print(json.dumps({name: kind for name, kind in found.items() if kind in kinds}))
"""


@pytest.mark.needs_triton
@pytest.mark.parametrize(
    ("decided", "asked", "kind"),
    [
        ("0", "interpret", "InterpretedFunction"),
        pytest.param("1", "compile", "JITFunction", marks=pytest.mark.nightly),
    ],
)
def test_triton_that_was_imported_before_is_as_if_roseinfer_came_first(decided, asked, kind):
    first, after = "import triton.language\n", "from roseinfer import triton_mode\n"
    environ = {"TRITON_INTERPRET": decided, "ROSEINFER_TRITON": asked}
    kernels, expected = (
        json.loads(printed_by(code + KERNELS_OF_TRITON, **environ)) for code in (first + after, after + first)
    )
    assert kernels == expected and len(kernels) > 50 and set(kernels.values()) == {kind}


@pytest.mark.nightly
@pytest.mark.needs_triton
def test_transformers_before_roseinfer_and_the_kernels_run_all_the_same():
    """On a machine without a GPU: a program that compares with transformers imports it first."""
    code = """
from transformers import GPT2LMHeadModel
from roseinfer import SamplingParams, load_model
from roseinfer.generate import generate
from roseinfer.reference import reference_generate
from stages import TritonPaged

model, prompts = load_model("tiny"), [[1, 2, 3], [4] * 20]
done = generate(TritonPaged(model, num_blocks=8, block_size=16), prompts, SamplingParams(max_tokens=4, ignore_eos=True))
print([seq.output_ids for seq in done] == reference_generate(model, prompts, 4))
"""
    assert printed_by(code, TRITON_INTERPRET="0", ROSEINFER_TRITON="interpret") == "True\n"


@pytest.mark.needs_triton
def test_transformers_after_roseinfer_finds_the_interpreter():
    code = (
        "from roseinfer.models import load_model\nfrom transformers import GPT2LMHeadModel\n"
        "from roseinfer import triton_mode\nprint(triton_mode.MODE, triton_mode.unavailable())"
    )
    assert printed_by(code, TRITON_INTERPRET="0", ROSEINFER_TRITON="interpret").split() == ["interpret", "None"]
