"""Start a Python process that runs one function, with a pipe to it."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

CODE = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
    "from roseinfer.parallel.process import call; call(**a)"
)


class ProcessEnded(RuntimeError):
    """Raised when a process that this one needs has ended, or did not start. The message is for a user and names it."""


def start_process(
    function: Callable[..., None], num_threads: int, **arguments: int | str
) -> tuple[subprocess.Popen, Connection]:
    """Run function(connection, num_threads=..., **arguments) in a new process; return it and this end of the pipe.

    function: of a module. Nothing of the caller's main module runs there, so a script needs no `if __name__` guard.
    The pipe ends with either process: recv then raises EOFError. num_threads: of OpenMP. Raises ValueError on Windows,
    whose processes do not inherit pipes in this way.
    """
    if os.name == "nt":
        raise ValueError("a second process needs Linux or macOS: this one runs on Windows")
    here, there = Pipe()
    path = [str(Path(folder).resolve()) for folder in sys.path]
    call = {"path": path, "descriptor": there.fileno(), "module": function.__module__, "name": function.__name__}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, json.dumps(call | {"arguments": arguments | {"num_threads": num_threads}})],
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for this process alone
        env=os.environ | {"OMP_NUM_THREADS": str(num_threads)},
    )
    there.close()
    return process, here


def call(descriptor: int, module: str, name: str, arguments: dict[str, int | str]) -> None:
    """Call the function that the parent named, in the new process."""
    getattr(importlib.import_module(module), name)(Connection(descriptor), **arguments)
