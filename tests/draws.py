"""How many examples Hypothesis draws: eight times as many at night as by day."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

TIMES = int(os.environ.get("ROSEINFER_DRAWS", "1"))  # `make nightly` says 8


def draws(examples: int, **others: Any) -> settings:
    """Return settings for this many examples by day, none of which has a deadline."""
    return settings(max_examples=examples * TIMES, deadline=None, **others)
