"""Table: exact text in text/plain, the live view in text/html."""

import pandas as pd
import pytest

from roseinfer.display import Table

DF = pd.DataFrame({"stage": ["s01<b>", "s02"], "ms": [12.5, 8.25], "copies": [192, 24], "share": [0.75, 1.5]})


def make(**options):
    return Table(DF, **{"exact": ["stage", "copies"], "live": ["ms", "share"], **options})


def test_plain_text_is_the_exact_columns_only():
    assert repr(make(title="Stages", note="on a fast machine")).splitlines() == [
        "Stages",
        "stage   copies",
        "------  ------",
        "s01<b>     192",
        "s02         24",
    ]


def test_plain_text_does_not_depend_on_times():
    slower = Table(DF.assign(ms=[1e9, float("nan")]), exact=["stage", "copies"], live=["ms"], note="elsewhere")
    assert repr(slower) == repr(make())


def test_html_has_every_column_in_the_frames_order_and_escapes():
    page = make(title="Stages & times", note="a<b", formats={"ms": "{:.1f} ms"})._repr_mimebundle_()["text/html"]
    assert page.index(">stage<") < page.index(">ms<") < page.index(">copies<") < page.index(">share<")
    assert "12.5 ms" in page
    assert "s01&lt;b&gt;" in page and "<b>" not in page
    assert "Stages &amp; times" in page and "a&lt;b" in page


def test_html_keeps_the_themes_text_colour():
    page = make(bars=["share"], note="x", query="SELECT 1").to_html()
    styles = page.replace("background: linear-gradient(90deg, rgba(", "")
    assert "color:" not in styles and "#" not in styles


def test_bars_are_shares_cut_at_the_whole():
    page = make(bars=["share"], formats={"share": "{:.0%}"}).to_html()
    assert "75.0%, transparent 75.0%" in page
    assert "100.0%, transparent 100.0%" in page and "150%" in page


def test_the_query_is_folded_in_html():
    page = make(query="SELECT a < b FROM slice\n").to_html()
    assert "<details><summary>SQL</summary><pre>SELECT a &lt; b FROM slice</pre></details>" in page
    assert "details" not in make().to_html()


def test_missing_values_are_empty():
    df = pd.DataFrame({"name": ["a", None], "n": pd.array([1, None], dtype="Int64"), "ms": [float("nan"), 2.0]})
    table = Table(df, exact=["name", "n"], live=["ms"], bars=["ms"])
    assert repr(table).split("\n")[2:] == ["a     1", ""]
    assert "nan" not in table.to_html().lower() and "<NA>" not in table.to_html()


def test_rows_can_be_live_too():
    table = make(exact_rows=[True, False])
    assert "s02" not in repr(table)
    assert "s02" in table.to_html()


def test_a_table_of_times_alone_has_its_title_as_text():
    table = Table(DF, exact=[], live=["ms"], title="Times")
    assert repr(table) == "Times" and "12.500" in table.to_html()


def test_an_empty_table_says_so():
    assert repr(Table(DF.head(0), exact=["stage"])).splitlines() == ["stage", "-----", "(no rows)"]


@pytest.mark.parametrize("argument", ["exact", "live", "formats", "bars"])
def test_unknown_columns_are_named(argument):
    wrong = {"tok_s": "{}"} if argument == "formats" else ["tok_s"]
    with pytest.raises(ValueError, match=rf"{argument} names columns \['tok_s'\].*'stage'"):
        make(**{argument: wrong})


def test_exact_rows_must_match():
    with pytest.raises(ValueError, match="exact_rows has 1 entries, df has 2 rows"):
        make(exact_rows=[True])
