"""Fixtures of the models' tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from oracles import small_llama, small_model

from roseinfer.models import to_hf


@pytest.fixture(scope="session")
def saved(tmp_path_factory) -> Callable[[str, Path], Path]:
    """Copies a small model of a family, with tied embeddings, to a path. transformers has saved it once."""

    @cache
    def original(family: str) -> Path:
        model = small_model() if family == "gpt2" else small_llama(family, tie_embeddings=True)
        to_hf(model).save_pretrained(path := tmp_path_factory.mktemp(family))
        return path

    return lambda family, path: Path(shutil.copytree(original(family), path))


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A small GPT-2 saved by transformers, as a user would have it."""
    return saved("gpt2", tmp_path / "model")
