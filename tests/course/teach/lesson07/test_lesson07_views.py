"""Lesson 07: the solution compiles; counted loads, pairs of lines and the picture."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from course.teach import count_loads, draw_programs, paged_case, side_by_side
from course.teach.exercises.solutions import parse_solutions
from course.teach.measure.kernel_loads import GuardedKernel, plain_function
from roseinfer.generate import begin
from roseinfer.kernels import triton_mode
from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from stages import BlockTableCache
from stages.s05_block_table import paged_attention_reference
from stages.s07_triton_paged import paged_attention_triton, paged_decode_kernel

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]
SOLUTIONS = parse_solutions((ROOT / "notebooks/solutions/07_triton_paged.py").read_text(encoding="utf-8"))
interpreted = pytest.mark.skipif(triton_mode.MODE != "interpret", reason="the interpreter's own ways")


HEAD = "import torch\nfrom roseinfer import triton_mode\ntl = triton_mode.language()\n"


def test_where_kernels_are_compiled_the_solution_compiles_for_a_gpu_and_a_child_counts(tmp_path):
    (tmp_path / "my_kernel.py").write_text(HEAD + SOLUTIONS["07.2"])
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from my_kernel import my_kernel
from roseinfer.kernels.aot import compile_for
types = dict.fromkeys(my_kernel.arg_names, "i32") | {{"block_table": "*i32", "context_lens": "*i32", "scale": "fp32"}}
types |= dict.fromkeys(("out", "q", "k", "v", "k_cache", "v_cache"), "*bf16")
shape = dict(NUM_HEADS=6, NUM_KV_HEADS=2, HEAD_DIM=80, DIM_PAD=128, BLOCK_SIZE=16)
print(compile_for(my_kernel, types, (), shape, 90, 4).stack_bytes)

import torch
from roseinfer import triton_mode
from course.teach import count_loads, paged_case
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
    environ = os.environ | {"ROSEINFER_TRITON": "compile"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    stack_bytes, counted, refused = done.stdout.splitlines()
    assert (stack_bytes, counted) == ("0", "compile True"), done.stderr
    assert refused == "attention must come from a module to be counted beside a GPU, got mine"


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
    cells = [c for c in nbformat.read(path, as_version=4).cells if "teach.side_by_side(" in c.source]
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


def test_a_slider_goes_over_the_tiles_that_programs_read(small):
    stage = BlockTableCache(small, num_blocks=8, block_size=16)
    seqs = begin(stage, [[5] * n for n in (20, 3)], SamplingParams(max_tokens=4))
    picture = draw_programs(stage, seqs, tile=8)
    assert len(picture.frames) == 4  # the first one is before any tile
    reads = {cell.text for cell in picture.frames[-1].panels[1].cells}
    assert {"16 to 19", "4 of 8", "done"} <= reads and "8 to 15" not in reads
    assert "the softmax's first element" in picture.frames[0].says and "exp(old top - top)" in picture.frames[1].says
