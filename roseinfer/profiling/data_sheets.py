"""data_sheet: what its maker says of a GPU that is not here, from roseinfer/data/gpus.json."""

from __future__ import annotations

import json
from typing import Any

from roseinfer.paths import GPUS


def data_sheet(gpu: str) -> dict[str, Any]:
    """Return read_bytes_per_s, num_sms, rates and source. Raises ValueError, listing the GPUs, for an unknown one."""
    sheets = json.loads(GPUS.read_text(encoding="utf-8"))
    if gpu not in sheets:
        raise ValueError(f"gpu={gpu!r} is not in roseinfer/data/gpus.json, allowed: {', '.join(sheets)}")
    return sheets[gpu]
