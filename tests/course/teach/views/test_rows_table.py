"""table: exact columns are compared, live ones shown, and rows that do not fit are refused."""

from __future__ import annotations

import pytest

from course import teach

ROWS = [{"stage": "s01", "ms": 2.345}, {"stage": "s02", "ms": 1.5}]


def test_live_columns_are_shown_and_not_compared():
    shown = teach.table(ROWS, live=["ms"], title="Two stages", note="one run each", formats={"ms": "{:.1f}"})
    assert repr(shown) == "Two stages\nstage\n-----\ns01\ns02"
    assert "2.3" in shown.to_html() and "one run each" in shown.to_html()
    assert "2.345" in repr(teach.table(ROWS))


@pytest.mark.parametrize(
    ("rows", "live", "message"),
    [
        ([], (), "rows must be at least one, got none"),
        ([*ROWS, {"stage": "s03"}], (), "rows must all have the keys stage, ms, got stage"),
        (ROWS, ["s"], "live must name columns, of stage, ms, got 's'"),
    ],
)
def test_rows_that_make_no_table_are_refused(rows, live, message):
    with pytest.raises(ValueError, match=message):
        teach.table(rows, live=live)
