"""`roseinfer serve` as a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

from running import DEADLINE

from roseinfer.paths import ROOT


@contextmanager
def serving(*arguments: str, **environ: str):
    """(process, url) once it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "roseinfer", "serve", *arguments, "--port", "0"],
        cwd=ROOT,
        env=os.environ | environ,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        said = []
        while "ready after" not in "".join(said):
            line = process.stderr.readline()
            assert line, "".join(said)
            said.append(line)
        yield process, re.search(r"http://\S+", "".join(said))[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(url: str, body: dict, **headers: str):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    return urllib.request.urlopen(request, timeout=DEADLINE)
