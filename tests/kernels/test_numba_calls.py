"""Numba's loops take PyTorch's threads, tell nobody else to, and run where nothing can be kept on disk."""

from __future__ import annotations

import subprocess
import sys

import pytest

from roseinfer.paths import ROOT

START = "import numpy as np, torch, numba; from roseinfer.kernels.numba_calls import compiled, run_parallel\n"
LOOP = """
def loop(out):
    for i in numba.prange(len(out)):
        out[i] = numba.get_num_threads()
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_loop_has_as_many_threads_as_pytorch_which_keeps_its_own(threads):
    code = f"""{START}{LOOP}
torch.set_num_threads({threads})
out = np.zeros(8)
run_parallel(numba.njit(parallel=True)(loop), out)
print(set(out.tolist()), torch.get_num_threads())
"""
    wanted = min(threads, _numba_threads())
    assert _run(code) == f"{{{float(wanted)}}} {threads}\n"


def test_where_nothing_can_be_written_a_loop_is_compiled_all_the_same():
    """A function without a file of its own cannot be kept on disk."""
    code = f"{START}exec({LOOP!r})\nout = np.zeros(3)\ncompiled(parallel=True)(loop)(out)\nprint(out.all())"
    assert _run(code) == "True\n"


def _numba_threads() -> int:
    import numba

    return numba.config.NUMBA_NUM_THREADS


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
