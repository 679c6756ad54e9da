"""What `make test` leaves to `make nightly`: cases whose neighbours say nearly the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def at_night(classes: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
    """Mark the classes whose name begins with one of `names` as nightly; for parametrize."""
    return [pytest.param(cls, marks=pytest.mark.nightly) if cls.name.startswith(names) else cls for cls in classes]
