"""Numba's loops take PyTorch's threads, leave other threads alone, and run where nothing can be kept on disk."""

from __future__ import annotations

import numba
import pytest
from fresh_python import printed_by

from roseinfer.kernels import numba_calls

pytestmark = pytest.mark.slow


START = "import numpy as np, torch, numba; from roseinfer.kernels.numba_calls import compiled, run_parallel\n"
LOOP = """
def loop(out):
    for i in numba.prange(len(out)):
        out[i] = numba.get_num_threads()
"""


def test_a_loop_has_as_many_threads_as_pytorch_which_keeps_its_own():
    """It runs where nothing can be written, too: a function without a file of its own cannot be kept on disk."""
    code = f"""{START}exec({LOOP!r})
own = compiled(parallel=True)(loop)
for threads in (1, 2):
    torch.set_num_threads(threads)
    out = np.zeros(8)
    run_parallel(own, out)
    print(set(out.tolist()), torch.get_num_threads())
"""
    most = numba.config.NUMBA_NUM_THREADS
    assert printed_by(code) == "".join(f"{{{float(min(threads, most))}}} {threads}\n" for threads in (1, 2))


def test_a_loop_that_is_read_from_disk_leaves_pytorch_its_threads():
    code = """
import torch
torch.set_num_threads(1)
before = torch.get_num_threads()  # from now on PyTorch asks OpenMP, which Numba tells its own number
from roseinfer.kernels.paged_numba import compiled_for
compiled_for(torch.float32)
print(before, torch.get_num_threads())
"""
    printed_by(code)  # it is on the disk now, where there is one to write to
    assert printed_by(code, OMP_NUM_THREADS="2") == "1 1\n"


@pytest.mark.parametrize(("is_terminal", "said"), [(True, "roseinfer: compiling\n"), (False, "")])
def test_someone_at_a_terminal_is_told_what_takes_long(monkeypatch, capsys, is_terminal, said):
    class TimerThatRuns:
        """Its time is over at once."""

        def __init__(self, seconds, do, args, kwargs):
            self.start = lambda: do(*args, **kwargs)
            self.cancel = lambda: None

    monkeypatch.setattr(numba_calls.threading, "Timer", TimerThatRuns)
    monkeypatch.setattr(numba_calls.sys.stderr, "isatty", lambda: is_terminal, raising=False)
    with numba_calls.told_if_slow("compiling"):
        assert capsys.readouterr().err == said
