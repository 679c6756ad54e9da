"""What `make test` leaves to `make nightly`: cases whose neighbours say nearly the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest


def at_night(classes: Sequence[Any], names: tuple[str, ...]) -> list[Any]:
    """Mark the classes whose name begins with one of `names` as nightly; for parametrize."""
    return [pytest.param(cls, marks=pytest.mark.nightly) if cls.name.startswith(names) else cls for cls in classes]


def in_every_run(cases: Mapping[str, tuple[Any, ...]], names: Collection[str]) -> list[Any]:
    """Mark all cases but the named ones as nightly; for parametrize, each with its name as id.

    Raises ValueError for a name that is no case.
    """
    if unknown := set(names) - cases.keys():
        raise ValueError(f"names must be cases, got {sorted(unknown)}")
    marks = {name: () if name in names else (pytest.mark.nightly,) for name in cases}
    return [pytest.param(*case, id=name, marks=marks[name]) for name, case in cases.items()]
