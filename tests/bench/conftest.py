"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

import pytest

from roseinfer.models import GPT2, to_hf


@pytest.fixture(scope="module")
def spec(small: GPT2, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model as a folder."""
    folder = tmp_path_factory.mktemp("small")
    to_hf(small).save_pretrained(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def no_progress_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine they would come between the lines that a test compares."""
    monkeypatch.setattr("roseinfer.cli.progress.EVERY_S", 3600.0)
