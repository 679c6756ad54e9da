"""Name and memory of this machine. The doctor asks too, so torch is imported where needed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Compute capabilities of GPUs: the first with bfloat16 (A100), the first for which Triton compiles (V100).
BFLOAT16_SINCE, TRITON_SINCE = (8, 0), (7, 0)
CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def device_name(device: torch.device | str) -> str:
    """Return the GPU's name, or the CPU's model name."""
    import torch

    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu()[0]


def dotted(capability: tuple[int, int]) -> str:
    """Write a compute capability as NVIDIA does: 8.0."""
    return ".".join(map(str, capability))


def best_device() -> str:
    """Return the GPU where there is one, else the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def devices_here() -> list[str]:
    """Return the devices of this machine that a model can be on, as torch names them."""
    import torch

    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def is_here(device: torch.device) -> bool:
    """Whether this machine has the device. "cuda" is any GPU, "cpu:0" the CPU."""
    import torch

    here = map(torch.device, devices_here())
    return any(device.type == one.type and device.index in (None, one.index or 0) for one in here)


@lru_cache(maxsize=1)
def cpu() -> tuple[str, frozenset[str]]:
    """Return the CPU's name, or else the architecture, and its feature flags as the system spells them."""
    # platform.processor() is empty or just "x86_64" on most Linux systems, so it comes last.
    unnamed = platform.processor() or platform.machine() or "CPU"
    if sys.platform == "darwin":
        features = {"bf16"} if _sysctl("hw.optional.arm.FEAT_BF16") == "1" else set()
        return _sysctl("machdep.cpu.brand_string") or unnamed, frozenset(features)
    try:
        lines = CPUINFO.read_text(errors="replace").splitlines()
    except OSError:
        return unnamed, frozenset()
    entries: dict[str, str] = {}
    for key, colon, value in (line.partition(":") for line in lines):
        if colon:
            entries.setdefault(key.strip(), value.strip())  # the first processor's
    features = (entries.get("flags") or entries.get("Features") or "").split()
    return entries.get("model name") or unnamed, frozenset(features)


def _sysctl(name: str) -> str:
    answer = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
    return answer.stdout.strip()


def cpu_memory() -> int | None:
    """Return the bytes of memory that the machine has, in use or not; None where it does not tell."""
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_bytes(device: torch.device | str) -> int | None:
    """Return the free bytes on the device; all of a CPU's memory if the system does not tell what is free.

    None where unknown, and where this machine has no such device.
    """
    import torch

    device = torch.device(device)
    if not is_here(device):
        return None
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if MEMINFO.is_file():
        lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return cpu_memory()
