"""Entries as files, and one contest that all of a module's entries share: its baseline is loaded once."""

from __future__ import annotations

from textwrap import dedent

import pytest
from small_contest import LIMITS, SMALL

from course.contest import Contest, read_entry


@pytest.fixture
def entry_of(tmp_path):
    def make(source: str):
        path = tmp_path / "my_entry.py"
        path.write_text(dedent(source))
        return read_entry(path)

    return make


@pytest.fixture(scope="module")
def contest():
    with Contest(SMALL, repeats=1, limits=LIMITS) as made:
        yield made
