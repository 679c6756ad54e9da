"""What this machine calls itself."""

from __future__ import annotations

import platform
import subprocess
from functools import lru_cache
from pathlib import Path

import torch


def device_name(device: torch.device | str) -> str:
    """The GPU's name, or the CPU's model name."""
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


@lru_cache(maxsize=1)
def _cpu_name() -> str:
    # platform.processor() is empty or just "x86_64" on most Linux systems, hence the two look-ups before it.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    if platform.system() == "Darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine() or "CPU"
