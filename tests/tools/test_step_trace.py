"""The page on a decode step has the files and functions that one runs through."""

from __future__ import annotations

import pytest

from tools.step_trace import PAGE, PLACE, fill, num_lines, trace_of_a_step

pytestmark = pytest.mark.slow
MOST_FILES, MOST_LINES = 14, 2_200


@pytest.fixture(scope="module")
def trace():
    return trace_of_a_step()


def test_the_page_is_of_todays_step(trace):
    page = PAGE.read_text(encoding="utf-8")
    assert PLACE.search(page) and fill(page, trace) == page, "run python -m tools.step_trace"


def test_a_step_does_not_grow_unseen(trace):
    assert len(trace) <= MOST_FILES and num_lines(trace) <= MOST_LINES
    assert next(iter(trace)).name == "live_requests.py" and list(trace)[-1].name == "detokenizer.py"
