"""view: the small marks of docstring-like text."""

from __future__ import annotations

from roseinfer.display.view import inline, prose


def test_emphasis_bold_and_code_are_marked_and_no_asterisk_is_left():
    assert inline("it *writes* the **whole** cache") == "it <em>writes</em> the <b>whole</b> cache"
    assert prose("*from the first\n token on*") == "<p><em>from the first token on</em></p>"


def test_products_and_code_keep_their_asterisks():
    assert inline("2 * x * y, and `a*b*c` or `**kwargs`") == (
        "2 * x * y, and <code>a*b*c</code> or <code>**kwargs</code>"
    )
