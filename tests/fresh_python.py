"""A Python of its own: what is imported first, or with another environment."""

from __future__ import annotations

import os
import subprocess
import sys

from roseinfer.paths import ROOT


def printed_by(code: str, **environ: str) -> str:
    """What the code prints when it is run at the repository's root. environ: beside what this process has."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
