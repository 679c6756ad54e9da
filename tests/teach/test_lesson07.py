"""Lesson 07: wrong answers to its exercises are told what is wrong; counted loads, guards, pairs and the picture."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest
import torch
from wrong_answers import assert_refused, wrong_answers

from roseinfer.generate import begin
from roseinfer.kernels import triton_mode
from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from roseinfer.teach import check, count_loads, draw_programs, paged_case, side_by_side
from roseinfer.teach.exercises.kernel_checks import MISTAKES, plain_attention, trials
from roseinfer.teach.measure.kernel_loads import GuardedKernel, OutOfBounds, plain_function
from stages import BlockTableCache
from stages.s05_block_table import paged_attention_reference
from stages.s07_triton_paged import paged_attention_triton, paged_decode_kernel, power_of_two
from tools.solutions import parse_solutions

pytestmark = pytest.mark.needs_triton
SOLUTIONS = parse_solutions((ROOT / "notebooks/solutions/07_triton_paged.py").read_text(encoding="utf-8"))
interpreted = pytest.mark.skipif(triton_mode.MODE != "interpret", reason="the interpreter's own ways")


# 07.1


def merge(a, b, total_shrinks=True, acc_shrinks=True):
    top = torch.maximum(a[0], b[0])
    shift = torch.where(top == -torch.inf, 0.0, top)
    shrinks = [torch.exp(part[0] - shift) for part in (a, b)]
    total = sum(part[1] * (s if total_shrinks else 1) for part, s in zip((a, b), shrinks, strict=True))
    acc = sum(part[2] * (s[:, None] if acc_shrinks else 1) for part, s in zip((a, b), shrinks, strict=True))
    return top, total, acc


def merge_to_nan(a, b):
    top = torch.maximum(a[0], b[0])
    total = a[1] * torch.exp(a[0] - top) + b[1] * torch.exp(b[0] - top)
    return top, total, a[2] * torch.exp(a[0] - top)[:, None] + b[2] * torch.exp(b[0] - top)[:, None]


def merge_unshifted(a, b):
    top, (a_all, b_all) = torch.maximum(a[0], b[0]), (torch.exp(a[0]), torch.exp(b[0]))
    total = (a[1] * a_all + b[1] * b_all) / torch.exp(top)
    return top, total, (a[2] * a_all[:, None] + b[2] * b_all[:, None]) / torch.exp(top)[:, None]


def merge_normalised(a, b):
    top, total, acc = merge(a, b)
    return top, total, acc / total[:, None]


def merge_in_place(a, b):
    merged = merge(a, b)
    a[2].add_(b[2])
    return merged


@wrong_answers(
    "07.1",
    {
        "total not shrunk": (
            lambda a, b: merge(a, b, total_shrinks=False),
            "two states: total is the plain sum of both",
        ),
        "acc not shrunk": (lambda a, b: merge(a, b, acc_shrinks=False), "two states: acc is the plain sum of both"),
        "the smaller top": (
            lambda a, b: (torch.minimum(a[0], b[0]), *merge(a, b)[1:]),
            "two states: top: 3 of 3 values differ",
        ),
        "NaN of two empty states": (merge_to_nan, "two states that have seen nothing: total is NaN"),
        "not shifted by the top": (merge_unshifted, "scores of several hundred: total is not finite"),
        "acc divided already": (merge_normalised, "acc is divided by total already"),
        "merged in place": (merge_in_place, "a state that was handed in has changed"),
        "total and top alone": (lambda a, b: merge(a, b)[:2], "expected (top, total, acc)"),
        "the first state alone": (lambda a, b: a, "two states: top: 3 of 3 values differ"),
    },
)
def test_a_wrong_merge(answer, message):
    assert_refused("07.1", answer, message)


def test_the_merge_that_the_wrong_ones_are_made_from_is_right():
    assert check("07.1", merge)


# 07.2


def cost(lengths, heads, dim, tile, width):
    return len(lengths) * heads, -(-max(lengths) // tile), sum(lengths) * 2 * heads * dim * width


def with_part(index, part):
    def answer(*arguments):
        right = list(cost(*arguments))
        right[index] = part(*arguments)
        return tuple(right)

    return answer


@wrong_answers(
    "07.2",
    {
        "a program for each sequence": (
            with_part(0, lambda lengths, h, d, t, w: len(lengths)),
            "a program for each of its KV heads",
        ),
        "full tiles alone": (
            with_part(1, lambda lengths, h, d, t, w: max(lengths) // t),
            "the last tile counts, full or not",
        ),
        "tiles of all sequences": (
            with_part(1, lambda lengths, h, d, t, w: sum(-(-n // t) for n in lengths)),
            "the longest counts",
        ),
        "K without V": (with_part(2, lambda lengths, h, d, t, w: sum(lengths) * h * d * w), "K and V are both loaded"),
        "whole tiles loaded": (
            with_part(2, lambda lengths, h, d, t, w: sum(-(-n // t) * t for n in lengths) * 2 * h * d * w),
            "a masked load reads nothing",
        ),
        "padded to the longest": (
            with_part(2, lambda lengths, h, d, t, w: max(lengths) * len(lengths) * 2 * h * d * w),
            "nobody is padded to the longest",
        ),
        "values for bytes": (
            with_part(2, lambda lengths, h, d, t, w: sum(lengths) * 2 * h * d),
            "those are values, not bytes",
        ),
        "a guess": (with_part(2, lambda lengths, h, d, t, w: 7), "bytes is not 7: walk through one program"),
        "one number": (lambda *arguments: 7, "expected (programs, tiles, bytes), got 7"),
    },
)
def test_a_wrong_cost(answer, message):
    assert_refused("07.2", answer, message)


# 07.3


def launch(kernel, q, k, v, k_cache, v_cache, block_table, context_lens):
    """As in the notebook."""
    q, k, v, k_cache, v_cache = (x.contiguous() for x in (q, k, v, k_cache, v_cache))
    batch_size, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    out = torch.empty_like(q)
    kernel[(batch_size, num_heads)](
        out, q, k, v, k_cache, v_cache, block_table, context_lens, head_dim**-0.5, block_table.stride(0),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim, DIM_PAD=power_of_two(head_dim), BLOCK_SIZE=block_size,
    )  # fmt: skip
    return out


HEAD = "import torch\nfrom roseinfer import triton_mode\ntl = triton_mode.language()\n"


@pytest.fixture
def spoiled(tmp_path, monkeypatch):
    """The solution's kernel with some texts in place of others, from a file: Triton reads a kernel's source."""

    def make(*changes: tuple[str, str]):
        source = SOLUTIONS["07.3"]
        for old, new in changes:
            assert old in source, old
            source = source.replace(old, new)
        (tmp_path / "spoiled_kernel.py").write_text(HEAD + source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "spoiled_kernel", raising=False)
        return importlib.import_module("spoiled_kernel").my_kernel

    return make


WRONG_KERNELS = {  # the mistake -> (what stands in the solution, what in its place), what is said
    "total from 0": (("total = 1.0", "total = 0.0"), "nothing cached: the answer is v of the new token"),
    "not scaled": (
        (" * scale", ""),
        "one full block each, the new token's score the largest: the scores are not multiplied",
    ),
    "the index for the id": (
        (
            "block = tl.load(block_table + seq * table_row + start // BLOCK_SIZE)",
            "block = (seq * 0 + start // BLOCK_SIZE)",
        ),
        "the id stands in block_table",
    ),
    "values are keys": (("v_cache + at", "k_cache + at"), "cached keys are summed up where cached values should be"),
    "acc not shrunk": (("acc = acc * shrink", "acc = acc"), "must shrink by exp(top - new_top)"),
    "total not shrunk": (("total = total * shrink", "total = total"), "must shrink by exp(top - new_top)"),
    "slots not masked": (
        ("cached[:, None] & real", "(slot >= 0)[:, None] & real"),
        "blocks that are not full: NaN came in",
    ),
    "masked slots score 0": ((', float("-inf"))', ", 0.0)"), "their score must be -inf"),
    "last cached token left out": (
        ("start + slot < num_cached", "start + slot < num_cached - 1"),
        "last cached token is left out",
    ),
    "a token too many": (("start + slot < num_cached", "start + slot <= num_cached"), "NaN came in"),
    "first block again and again": (
        ("seq * table_row + start // BLOCK_SIZE", "seq * table_row"),
        "every tile reads the sequence's first block",
    ),
    "first sequence's row": (
        ("block_table + seq * table_row", "block_table"),
        "every sequence reads the first sequence's blocks",
    ),
    "KV heads dealt out": (
        ("head // (NUM_HEADS // NUM_KV_HEADS)", "head % NUM_KV_HEADS"),
        "3 query heads each: a wrong KV head",
    ),
    "store not masked": (
        ("(acc / total).to(out.dtype.element_ty), mask=real", "(acc / total).to(out.dtype.element_ty)"),
        "a store goes outside of every tensor; nearest is out",
    ),
    "padded width for stride": (("* HEAD_DIM + dim[None, :]", "* DIM_PAD + dim[None, :]"), "a head size of 80"),
    "keys loaded twice": (
        (
            "values = tl.load(v_cache + at, mask=readable, other=0.0).to(tl.float32)",
            "values = tl.load(v_cache + at, mask=readable, other=0.0).to(tl.float32)\n"
            "        keys = tl.load(k_cache + at, mask=readable, other=0.0).to(tl.float32)",
        ),
        "loaded 4 times for 2 query heads; the budget is 2",
    ),
}


@interpreted
@wrong_answers("07.3", WRONG_KERNELS)
def test_a_wrong_kernel(spoiled, answer, message):
    assert_refused("07.3", spoiled(answer), message, launch=launch)


@interpreted
@pytest.mark.parametrize(
    "scale_last", [False, True], ids=["the interpreter raises", "the interpreter gives wrong numbers"]
)
def test_a_kernel_that_does_not_upcast(spoiled, scale_last):
    changes = [(".to(tl.float32)", "")]
    if scale_last:  # the scale, fp32, would upcast the query after all
        changes += [
            (" * scale", ""),
            ("top = tl.sum(query * new_k, axis=0)", "top = tl.sum(query * new_k, axis=0) * scale"),
        ]
        changes += [("keys, axis=1)", "keys, axis=1).to(tl.float32) * scale")]
    verdict = check("07.3", spoiled(*changes), launch=launch)
    assert "bf16: " in repr(verdict) and "right in fp32: upcast after every load" in repr(verdict)


def test_a_stub_is_not_attempted_and_a_plain_function_is_no_kernel(spoiled):
    def plain(out, q):
        return out + q

    body = SOLUTIONS["07.3"].partition("# fmt: skip\n")[2]
    assert repr(check("07.3", spoiled((body, "    ...\n")), launch=launch)) == "07.3 not attempted"
    assert "decorate the function with @triton_mode.jit" in repr(check("07.3", plain, launch=launch))


@interpreted
def test_an_error_in_a_kernel_is_the_learners_own(spoiled):
    verdict = check("07.3", spoiled(("slot[:, None]", "slots[:, None]")), launch=launch)
    assert "NameError: name 'slots' is not defined" in repr(verdict)


@pytest.mark.parametrize("trial", trials(), ids=lambda trial: re.sub(r"\W+", "-", trial.name))
def test_every_trial_is_one_that_the_reference_passes(trial):
    case = trial.make()
    got = paged_attention_reference(*case)
    torch.testing.assert_close(got.double().cpu(), plain_attention(case), atol=3e-2, rtol=3e-2)


def test_the_trials_tell_all_mistakes_apart():
    """Each mistake changes the answer of some trial, and no two give the same answer wherever they do."""
    cases = [trial.make() for trial in trials()]
    right = [plain_attention(case) for case in cases]
    seen = {}
    for mistake in MISTAKES:
        made = [plain_attention(case, mistake) for case in cases]
        changed = [i for i, (a, b) in enumerate(zip(made, right, strict=True)) if not torch.allclose(a, b, atol=1e-2)]
        assert changed, mistake
        seen[mistake] = made
    first, *others = [torch.cat([t.flatten() for t in made]) for made in seen.values()]
    for other in others:
        assert not torch.allclose(first, other, equal_nan=True)


def test_the_solution_compiles_for_a_gpu(tmp_path):
    (tmp_path / "my_kernel.py").write_text(HEAD + SOLUTIONS["07.3"])
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from my_kernel import my_kernel
from roseinfer.kernels.aot import compile_for
types = dict.fromkeys(my_kernel.arg_names, "i32") | {{"block_table": "*i32", "context_lens": "*i32", "scale": "fp32"}}
types |= dict.fromkeys(("out", "q", "k", "v", "k_cache", "v_cache"), "*bf16")
shape = dict(NUM_HEADS=6, NUM_KV_HEADS=2, HEAD_DIM=80, DIM_PAD=128, BLOCK_SIZE=16)
print(compile_for(my_kernel, types, (), shape, 90, 4).stack_bytes)
"""
    done = run(code, ROSEINFER_TRITON="compile")
    assert done.stdout.split() == ["0"], done.stderr


# What the notebook shows.


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environ)


@pytest.mark.parametrize("shape", [{}, {"group": 4}, {"num_kv_heads": 3, "head_dim": 80}], ids=str)
def test_the_stages_kernel_loads_each_cached_value_once_and_nothing_else(shape):
    case = paged_case([40, 0, 3, 16], **shape)
    for times in count_loads(paged_attention_triton, case):
        assert torch.equal(times, case.cached.long())


@interpreted
def test_loads_are_counted_as_often_as_they_are_made():
    case = paged_case([20, 3], group=1)
    twice = count_loads(lambda *a: paged_attention_triton(*a) + paged_attention_triton(*a), case)
    assert torch.equal(twice[0], 2 * case.cached.long())


@interpreted
def test_nothing_stays_patched():
    from triton.runtime.interpreter import interpreter_builder

    with pytest.raises(ZeroDivisionError):
        count_loads(lambda *arguments: 1 / 0, paged_case([3]))
    assert not {"create_masked_load", "create_masked_store"} & vars(interpreter_builder).keys()


def test_where_kernels_are_compiled_a_child_counts():
    code = """
import torch
from roseinfer import triton_mode
from roseinfer.teach import count_loads, paged_case
from stages.s07_triton_paged import paged_attention_triton
triton_mode.require_triton = lambda: None  # there is no GPU, and none is needed to count
case = paged_case([20, 3])
print(triton_mode.MODE, all(torch.equal(t, case.cached.long()) for t in count_loads(paged_attention_triton, case)))
def mine(*arguments): ...
try:
    count_loads(mine, case)
except ValueError as error:
    print(error)
"""
    done = run(code, ROSEINFER_TRITON="compile")
    counted, refused = done.stdout.splitlines()
    assert counted == "compile True", done.stderr
    assert refused == "attention must come from a module to be counted beside a GPU, got mine"


@interpreted
def test_a_guarded_kernel_may_touch_its_own_tensors_only(spoiled):
    case = paged_case([20, 3])
    torch.testing.assert_close(launch(GuardedKernel(spoiled()), *case), paged_attention_reference(*case))
    wrong = spoiled(("block * BLOCK_SIZE", "(block + 10_000_000) * BLOCK_SIZE"))
    with pytest.raises(Exception) as caught:
        launch(GuardedKernel(wrong), *case)
    assert isinstance(caught.value.__cause__, OutOfBounds)
    assert "a load goes outside of every tensor; nearest is " in str(caught.value.__cause__)


def test_a_case_is_ragged_shuffled_and_full_of_nan():
    case = paged_case([0, 17, 16], num_kv_heads=2, group=3, head_dim=8, block_size=16)
    assert case.q.shape == (3, 6, 8) and case.k.shape == (3, 2, 8)
    assert int(case.cached.sum()) == 33 * 2 * 8 and case.k_cache[0].isnan().all()
    assert torch.equal(case.cached, ~case.v_cache.isnan())
    assert case.block_table.dtype == torch.int32 and case.block_table[0].tolist() == [0, 0, 0]
    assert len({int(b) for b in case.block_table.flatten()} - {0}) == 3
    assert all(torch.equal(a, b) for a, b in zip(case.q, paged_case([0, 17, 16], group=3, head_dim=8).q, strict=True))


def test_lines_are_paired_from_the_sources():
    pairs = {"first": ("total = torch", "total = tl.full"), "only right": ((), ("seq =", "head ="))}
    shown = side_by_side(paged_attention_reference, paged_decode_kernel, pairs)
    assert shown.pairs["first"][1] == ["total = tl.full([HEADS, GROUP_PAD], 1.0, tl.float32)"]
    assert shown.pairs["only right"][0] == [] and len(shown.pairs["only right"][1]) == 2
    assert "paged_decode_kernel        seq = tl.program_id(0)\n" in repr(shown)
    assert shown.to_html().count("<tr>") == 5  # a head, and an idea and its lines for each pair


@pytest.mark.parametrize(("beginning", "found"), [("top =", 2), ("nowhere", 0)])
def test_a_beginning_must_name_one_line(beginning, found):
    with pytest.raises(ValueError, match=f"'{beginning}' begins {found} lines of paged_attention_reference"):
        side_by_side(paged_attention_reference, paged_decode_kernel, {"idea": (beginning, ())})


def test_the_function_inside_a_kernel():
    def plain():
        pass

    assert plain_function(plain) is plain
    for kernel in (paged_decode_kernel, GuardedKernel(paged_decode_kernel)):
        assert plain_function(kernel).__name__ == "paged_decode_kernel"


def test_every_statement_of_the_kernels_loop_is_paired():
    """The notebook shows the kernel line by line: none may be missing there."""
    import ast
    import inspect
    import textwrap

    import nbformat

    path = ROOT / "notebooks" / "07_triton_paged.ipynb"
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.source.startswith("teach.side_by_side")]
    shown = "\n".join(output["data"]["text/plain"] for cell in cells for output in cell.outputs)
    for function in (plain_function(paged_decode_kernel), paged_attention_reference):
        source = textwrap.dedent(inspect.getsource(function))
        (loop,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.For)]
        for statement in loop.body:
            line = ast.get_source_segment(source, statement)
            assert line in shown or line == "top = new_top", line


def test_the_picture_says_who_walks_where(small):
    stage = BlockTableCache(small, num_blocks=8, block_size=16)
    seqs = begin(stage, [[5] * n for n in (20, 3)], SamplingParams(max_tokens=4))
    text = repr(draw_programs(stage, seqs, tile=8))
    assert text == (
        "8 programs, 4 for each of 2 sequences with [20, 3] cached tokens: they walk over 16 tiles of 8 tokens. To the "
        "longest sequence's end for all of them it would be 32."
    )
    with pytest.raises(ValueError, match="tile must divide block_size=16, got 3"):
        draw_programs(stage, seqs, tile=3)
