"""Fixtures of the models' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles import small_model

from roseinfer.models import to_hf


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small model saved by transformers, as a user would have it."""
    to_hf(small_model()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"
