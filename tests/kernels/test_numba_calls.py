"""Numba's loops take PyTorch's threads, leave other threads alone, and run where nothing can be kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


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


def test_a_loop_that_is_read_from_disk_leaves_pytorch_its_threads():
    code = """
import torch
torch.set_num_threads(1)
before = torch.get_num_threads()  # from now on PyTorch asks OpenMP, which Numba tells its own number
from roseinfer.kernels.paged_numba import compiled_for
compiled_for(torch.float32)
print(before, torch.get_num_threads())
"""
    _run(code)  # it is on the disk now, where there is one to write to
    assert _run(code, OMP_NUM_THREADS="2") == "1 1\n"


def test_where_nothing_can_be_written_a_loop_is_compiled_all_the_same():
    """A function without a file of its own cannot be kept on disk."""
    code = f"{START}exec({LOOP!r})\nout = np.zeros(3)\ncompiled(parallel=True)(loop)(out)\nprint(out.all())"
    assert _run(code) == "True\n"


def _numba_threads() -> int:
    import numba

    return numba.config.NUMBA_NUM_THREADS


def _run(code: str, **environment: str) -> str:
    environ = os.environ | environment
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
