"""Runs a notebook from the command line, in the same way for recording, comparing and checking solutions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ipykernel.kernelspec import get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient
from nbformat import NotebookNode

from course.own_engine import kept as own_engine
from course.teach.journal import entries as journal
from roseinfer.paths import ROOT

SKIP_TAG = "nbval-skip"
REACHED = ("roseinfer", "course", "stages", "data")  # what a notebook may import and read


class OwnInterpreter(AsyncKernelManager):
    """Starts kernels of the interpreter that runs this; a kernelspec python3 may belong to another environment."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(**get_kernel_dict(["--log-level=ERROR"]))  # it warns of its own transport each time


def notebook_client(nb: NotebookNode, folder: Path, timeout: float = 600) -> NotebookClient:
    """Make a client that runs nb in place with `folder` as the working directory. timeout: of one cell, in seconds.

    Cells tagged nbval-skip are left as they are. Start its kernel with env=kernel_env().
    """
    return NotebookClient(
        nb,
        timeout=timeout,
        kernel_name="python3",
        kernel_manager_class=OwnInterpreter,
        resources={"metadata": {"path": str(folder)}},
        skip_cells_with_tag=SKIP_TAG,
        # The default waits 4 s for a cell's last outputs and then drops them without a word.
        iopub_timeout=60,
        raise_on_iopub_timeout=True,
        coalesce_streams=True,
        record_timing=False,
        store_widget_state=False,
    )


def kernel_env() -> dict[str, str]:
    """Return this process's environment without pytest's variables, with which ipykernel would behave differently.

    What such a run checks or guesses does not count as a learner's progress, and no answer of it is kept.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return kept | {journal.PLACE: journal.OFF, own_engine.PLACE: own_engine.OFF}


def plain_text(cell: dict[str, Any]) -> list[str]:
    """List the text/plain of each output that a cell displays."""
    return [output["data"]["text/plain"] for output in cell["outputs"] if "text/plain" in output.get("data", {})]


def digest(files: Iterable[Path]) -> str:
    """Hash these files, as far as they exist, with all code that a notebook can reach and what is installed here.

    Equal digests mean that a notebook would give the same outputs.
    """
    return sha256("".join([*map(_hashed, files), _reached()]).encode()).hexdigest()


@cache
def _reached() -> str:
    paths = sorted(path for room in REACHED for path in (ROOT / room).rglob("*") if "__pycache__" not in path.parts)
    packages = sorted(f"{package.name} {package.version}" for package in distributions())
    return "".join([sys.version, *packages, *map(_hashed, paths)])


def _hashed(path: Path) -> str:
    return f"{path.name} {sha256(path.read_bytes()).hexdigest()}" if path.is_file() else ""
