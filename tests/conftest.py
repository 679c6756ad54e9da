"""What holds for all tests. shared.py has the fixtures."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

# Started in the background, a process does not hear Ctrl-C, nor do those that it starts. Tests send it, and wait.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A process either compiles Triton kernels or interprets them, chosen when roseinfer is imported: `-m gpu` compiles. The
# models of all other tests are on the CPU, on a machine with a GPU too.
os.environ.setdefault("ROSEINFER_TRITON", "compile" if "gpu" in sys.argv else "interpret")
os.environ["ROSEINFER_PROGRESS"] = "off"  # a test's checks are no learner's progress
os.environ["ROSEINFER_MY_ENGINE"] = "off"  # nor are its answers kept
os.environ["ROSEINFER_REPEATS"] = "99"  # no time is looked at: the machine is measured in one pass, all else as asked
# nbformat imports jsonschema, which would spend a second on grammars of international web addresses.
sys.modules.setdefault("rfc3987_syntax", None)

import pytest  # noqa: E402


def pytest_configure(config: pytest.Config) -> None:
    """Load the shared fixtures, and PyTorch with them. xdist's controller runs no test, and its workers wait for it."""
    if not getattr(config.option, "numprocesses", None):
        config.pluginmanager.import_plugin("shared")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through all that is imported and collected, which stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
