"""The kernels of lesson 23 compile for GPUs, without one, and nothing spills."""

from __future__ import annotations

from itertools import product

import pytest
from fresh_python import printed_by
from rung_answers import OF_LESSON_23

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]
HEAD = "from roseinfer import triton_mode\ntl = triton_mode.language()\n"
RESIDUAL, NORM = ("residual",), ("norm_weight", "norm_bias")
# dtype, rows and arguments that are left out. In every run each of them once or twice, at night with all of the others.
SHAPES = [("bf16", 1, NORM), ("bf16", 64, RESIDUAL), ("fp32", 32, RESIDUAL), ("fp32", 64, NORM)]
OTHERS = {*product(("bf16", "fp32"), (1, 32, 64), (RESIDUAL, NORM))} - {*SHAPES}


@pytest.mark.parametrize(
    "shapes", [SHAPES, pytest.param(sorted(OTHERS), marks=pytest.mark.nightly)], ids=["a few", "rest"]
)
def test_the_solutions_and_the_stages_kernel(tmp_path, shapes):
    (tmp_path / "solved.py").write_text(HEAD + OF_LESSON_23["23.2"] + "\n\n" + OF_LESSON_23["23.3"])
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import solved
from roseinfer.kernels.aot import ARCHITECTURES, compile_for
from stages.s23_few_launches import linear_kernel, program_shape

def spilled(kernel, dtype, constexprs):
    types = dict.fromkeys(kernel.arg_names, "*" + dtype) | {{"num_rows": "i32", "num_out": "i32", "eps": "fp32"}}
    aligned = types.keys() - {{"num_rows", "eps", *constexprs}}
    return [compile_for(kernel, types, aligned, constexprs, arch, 4).stack_bytes for arch in ARCHITECTURES]

tiles = {{"WIDTH": 768, "ROWS": 16, "COLUMNS": 16, "CHUNK": 64}}
print([spilled(kernel, "fp32", tiles) for kernel in (solved.few_rows_kernel, solved.norm_product_kernel)])
for dtype, rows, without in {shapes!r}:
    tiles = program_shape(rows, 2304, 768, interpreted=False) | {{"WIDTH": 768, "INTERPRETED": False}}
    print(spilled(linear_kernel, dtype, tiles | {{"GELU": "residual" in without}} | dict.fromkeys(without)))
"""
    assert printed_by(code, ROSEINFER_TRITON="compile").splitlines() == ["[[0, 0], [0, 0]]", *["[0, 0]"] * len(shapes)]
