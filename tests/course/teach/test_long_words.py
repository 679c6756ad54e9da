"""A word of code that is longer than a column breaks after its dots, so that the page does not scroll for it."""

from __future__ import annotations

from course.teach.source.listing import COLUMN, side_by_side

LONG = 'span("roseinfer.decode_step_sessions.build_block_tables_of_every_layer"):'


def test_a_long_word_breaks_behind_its_dots_and_a_short_one_is_left_alone():
    assert len(LONG) > COLUMN
    long, short = (side_by_side(f"with {word}", "pass", ("old", "new")) for word in (LONG, 'span("a.b"):'))
    assert long.count(".<wbr>") == LONG.count(".") and "<wbr>" not in short
    widths = [int(table.split("min-width: ")[1].split("px")[0]) for table in (long, short)]
    assert widths[0] < 7.25 * 2 * COLUMN  # both columns are on the page
