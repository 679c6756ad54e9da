"""What a recorded run must say about where it comes from: host, device, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from typing import Any

import torch

from roseinfer.arguments import counted
from roseinfer.display.measured import MachineResult
from roseinfer.hardware import device_name
from roseinfer.paths import ROOT

# What `make gpu-report` writes does not make the code another one.
CODE = (".", ":!data/runs", ":!data/traces")


def describe_host(device: torch.device) -> dict[str, Any]:
    """Return host, device, versions (triton: None if not installed; cuda and driver: on a GPU only) and commit."""
    import numba
    import transformers

    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _triton_version(),
        "numba": numba.__version__,
        "transformers": transformers.__version__,
    }
    if device.type == "cuda":
        versions |= {"cuda": torch.version.cuda, "driver": _driver_version()}
    return {
        "host": {
            "cpu": device_name("cpu"),
            "cores": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
        "device": device_name(device),
        "versions": versions,
        "commit": _commit(),
    }


def short_commit(commit: str | None) -> str:
    """Return the commit, such as 8808164 or 8808164-dirty; "unknown" outside a clone."""
    if commit is None:
        return "unknown"
    head, _, dirty = commit.partition("-")
    return head[:7] + (f"-{dirty}" if dirty else "")


def where(result: MachineResult) -> str:
    """Say where a result comes from, in a few words."""
    return f"{result.device}, torch {result.versions['torch']}, commit {short_commit(result.commit)}"


def where_in_full(result: MachineResult) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items() if version)
    threads = result.host["torch_threads"]
    return f"{result.device}, {counted(threads, 'thread')}; {versions}; commit {short_commit(result.commit)}"


def _triton_version() -> str | None:
    try:
        import triton
    except ModuleNotFoundError:
        return None
    return triton.__version__


def _driver_version() -> str | None:
    said = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return said.splitlines()[0] if said else None


def _commit() -> str | None:
    """Return HEAD, with "-dirty" when code differs; None before the first commit. Outside a clone: ROSEINFER_COMMIT."""
    if not (ROOT / ".git").exists():  # installed elsewhere: another repository around it says nothing about us
        return os.environ.get("ROSEINFER_COMMIT")
    head = _git("rev-parse", "--verify", "--quiet", "HEAD")
    return f"{head}-dirty" if head and _git("status", "--porcelain", "--", *CODE) else head or None


def _git(*arguments: str) -> str:
    return _output("git", "-C", str(ROOT), *arguments)


def _output(*command: str) -> str:
    """Return what a command prints; nothing when it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
