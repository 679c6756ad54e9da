"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roseinfer.models import GPT2, to_hf


@pytest.fixture(scope="module")
def spec(small: GPT2, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small model as a folder."""
    folder = tmp_path_factory.mktemp("small")
    to_hf(small).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def no_time_is_judged() -> Iterator[None]:
    """No run waits until the threads of the one before are idle, and no line of progress comes between others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roseinfer.bench.race.wait_until_idle", lambda: None)
        patch.setattr("roseinfer.cli.progress.EVERY_S", 3600.0)
        yield
