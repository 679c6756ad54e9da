"""The kernels of lesson 23 compile for GPUs, without one, and nothing spills."""

from __future__ import annotations

import pytest
from fresh_python import printed_by
from rung_answers import OF_LESSON_23

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]
HEAD = "from roseinfer import triton_mode\ntl = triton_mode.language()\n"
COMPILE = """
from roseinfer.kernels.aot import ARCHITECTURES, compile_for

def spilled(kernel, dtype, constexprs):
    types = dict.fromkeys(kernel.arg_names, "*" + dtype) | {"num_rows": "i32", "num_out": "i32", "eps": "fp32"}
    aligned = types.keys() - {"num_rows", "eps", *constexprs}
    return [compile_for(kernel, types, aligned, constexprs, arch, 4).stack_bytes for arch in ARCHITECTURES]
"""


def test_the_solutions(tmp_path):
    (tmp_path / "solved.py").write_text(HEAD + OF_LESSON_23["23.2"] + "\n\n" + OF_LESSON_23["23.3"])
    tiles = {"WIDTH": 768, "ROWS": 16, "COLUMNS": 16, "CHUNK": 64}
    code = f"""{COMPILE}
import sys; sys.path.insert(0, {str(tmp_path)!r})
import solved
print([spilled(kernel, "fp32", {tiles}) for kernel in (solved.few_rows_kernel, solved.norm_product_kernel)])
"""
    assert printed_by(code, ROSEINFER_TRITON="compile").strip() == "[[0, 0], [0, 0]]"


def test_the_stages_kernel():
    code = f"""{COMPILE}
from stages.s23_few_launches import linear_kernel, program_shape
for dtype in ("bf16", "fp32"):
    for rows in (1, 32, 64):
        tiles = program_shape(rows, 2304, 768, interpreted=False) | {{"WIDTH": 768, "INTERPRETED": False}}
        for without in (("residual",), ("norm_weight", "norm_bias")):
            shape = tiles | {{"GELU": "residual" in without}} | dict.fromkeys(without)
            print(sum(spilled(linear_kernel, dtype, shape)))
"""
    assert printed_by(code, ROSEINFER_TRITON="compile").split() == 12 * ["0"]
