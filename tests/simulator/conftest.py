"""Shapes of steps that are measured fast."""

from __future__ import annotations

import pytest

from roseinfer.simulator import measure


@pytest.fixture
def few_shapes(monkeypatch):
    monkeypatch.setattr(measure, "PROMPTS", ((1, 16), (4, 24)))
    monkeypatch.setattr(measure, "CUT", ((2, 120),))
    monkeypatch.setattr(measure, "CACHED", ((4, 90),))
