"""data_sheet: what its maker says of a GPU that is not here, from roseinfer/data/gpus.json."""

from __future__ import annotations

import json
from typing import Any

from roseinfer.paths import GPUS


def data_sheet(gpu: str) -> dict[str, Any]:
    """Return read_bytes_per_s, num_sms, rates of arithmetic and their source for a GPU, also named in lower case.

    Raises ValueError, listing the GPUs, for an unknown one.
    """
    sheets = json.loads(GPUS.read_text(encoding="utf-8"))
    by_name = {name.casefold(): sheet for name, sheet in sheets.items()}
    if gpu.casefold() not in by_name:
        raise ValueError(f"gpu={gpu!r} is not in roseinfer/data/gpus.json, allowed: {', '.join(sheets)}")
    return by_name[gpu.casefold()]
