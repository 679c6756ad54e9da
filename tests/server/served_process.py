"""`roseinfer serve` as a process of its own, and requests to it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from running import DEADLINE, Asked

from roseinfer.paths import ROOT


class Served(Asked):
    """A process that serves."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        super().__init__(url)
        self.process = process

    def ended(self) -> str:
        """Return what it said as it ended, in time and with status 0."""
        out, said = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0 and out == "", said
        return said


@contextmanager
def serving(*arguments: str, **environ: str) -> Iterator[Served]:
    """Start the process, and yield it once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "roseinfer", "serve", *arguments, "--port", "0"],
        cwd=ROOT,
        env=os.environ | environ,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = ""
        while "ready after" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        yield Served(process, re.search(r"http://\S+", said)[0])
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
