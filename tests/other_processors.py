"""Code that is compiled for another processor, in a process of its own: Numba is told once what to compile for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def run_as(processor: str, name: str, features: str, code: str, folder: Path) -> None:
    """Run code as on that processor, its machine code kept in the folder. Skips where this CPU lacks an instruction."""
    told = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(folder)}
    told["PYTHONPATH"] = os.pathsep.join(sys.path)  # code may import a test, which imports its helpers
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | told, capture_output=True, text=True)
    if done.returncode == -signal.SIGILL:
        pytest.skip(f"this CPU has no {processor}")
    assert done.returncode == 0, done.stderr
