"""data_sheet: what its maker says of a GPU that is not here, from roseinfer/data/gpus.json."""

from __future__ import annotations

import json
from typing import Any

from roseinfer.paths import GPUS


def data_sheet(gpu: str) -> dict[str, Any]:
    """read_bytes_per_s, num_sms, rates of arithmetic and their source. ValueError that lists the GPUs if unknown."""
    sheets = json.loads(GPUS.read_text(encoding="utf-8"))
    if gpu not in sheets:
        raise ValueError(f"gpu={gpu!r} is not in roseinfer/data/gpus.json, allowed: {', '.join(sheets)}")
    return sheets[gpu]
