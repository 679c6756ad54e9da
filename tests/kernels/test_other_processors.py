"""Products as they are compiled for other processors: tests of this folder in a process that is told of one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from roseinfer.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="these are processors of another kind"),
]

# What Numba compiles for: a name and its features.
PROCESSORS = {
    "AVX2": ("haswell", ""),
    "AVX-VNNI": ("alderlake", "+avx2,+fma,+avxvnni"),
    "SSE": ("x86-64", ""),  # no instruction for four products of bytes, and none for a fused product
}
# One product of each of our ways to widen 4 bits. Those of floats, and of 8 bits, are compiled for AVX2 at night.
FEW = "(product_is_that and 100-96 or rows_are) and Q4_1 or every_processor and 4"
ALL = "it_is_the_product or product_is_that or rows_are or every_shape or every_processor"


def assert_pass_on(processor: str, tests: list[str], which: str) -> None:
    """Run tests as on that processor. Skips where this CPU lacks one of its instructions."""
    name, features = PROCESSORS[processor]
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "ATEN_CPU_CAPABILITY": "avx2"}
    without = [word for plugin in ("cacheprovider", "nbval", "schemathesis") for word in ("-p", f"no:{plugin}")]
    command = [sys.executable, "-m", "pytest", "-q", *without, *tests, "-k", which]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | told, capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip(f"this CPU has no {processor}")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("processor", "which"),
    [
        pytest.param("AVX2", FEW, id="AVX2, few"),
        *(pytest.param(name, ALL, id=name, marks=pytest.mark.nightly) for name in PROCESSORS),
    ],
)
def test_products(processor, which):
    files = ["test_tiled_numba", "test_quantized_numba"]
    if processor == "AVX2":  # matrices as they are stored are for it and those that know more
        files.append("test_stored_blocks")
    assert_pass_on(processor, [f"tests/kernels/{file}.py" for file in files], which)


@pytest.mark.nightly
def test_tokens_of_matrices_as_they_are_stored():
    assert_pass_on("AVX2", ["tests/models/test_gguf.py"], "as_they_are_stored and Q4_1 and qwen2")
