"""say: sentences computed from times stand in the live view alone, so that a recorded notebook can be compared."""

from __future__ import annotations

import pytest

from course import teach


def test_what_is_compared_names_the_subject_alone():
    first, second = (teach.say("who is faster", f"**A** took {ms} ms & `b` more.") for ms in (3, 4))
    assert repr(first) == repr(second) == "computed from this run: who is faster"
    assert "<b>A</b> took 3 ms &amp; <code>b</code> more." in first.to_html() and "4 ms" in second.to_html()


def test_nothing_said_is_refused():
    with pytest.raises(ValueError, match="sentences must be at least one, got none"):
        teach.say("nothing")
