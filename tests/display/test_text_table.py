"""TextTable: any table as text; and numbers as text."""

import numpy as np
import pytest

from roseinfer.display.number_text import exact, rounded, share, significant, verbatim
from roseinfer.display.text_table import CLOSE, MANY, Column, TextTable, markdown_text, text_width


def test_a_table_wider_than_the_terminal_is_folded_and_keeps_every_character():
    name = "".join(chr(65 + i % 26) for i in range(60))
    assert TextTable.of(["name", "n"], [(name, 1), ("b", 22)]).text(width=30).splitlines() == [
        "name                         n",
        "--------------------------  --",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ   1",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "ABCDEFGH",
        "b                           22",
    ]


def test_a_table_that_cannot_fit_is_not_folded_to_nothing():
    lines = TextTable.of(["name", "n"], [("a" * 30, 10**30)]).text(width=10).splitlines()
    assert lines[2:] == [f"{'a' * 20}  {10**30}", "a" * 10]
    assert TextTable.of(["n"], [(10**30,)]).text(width=10).splitlines()[2] == str(10**30)


def test_cells_are_as_they_are():
    rows = [(None, "two\nlines", [1, 2], 0.1 + 0.2), (7, "", [], 1e-9)]
    assert TextTable.of(["n", "text", "list", "x"], rows, missing="NULL").text().splitlines() == [
        "   n  text   list                      x",
        "----  -----  ------  -------------------",
        "NULL  two    [1, 2]  0.30000000000000004",
        "      lines",
        "   7         []                    1e-09",
    ]


def test_a_column_is_one_of_numbers_only_if_all_its_values_are():
    table = TextTable.of(["a", "b", "c", "d"], [(1, None, "x", True), (None, None, 2, False)])
    assert table.right == [True, False, False, False]
    assert TextTable.of(["n", Column("m", right=True)], []).right == [False, True]


def test_names_of_more_lines_stand_on_the_rule():
    assert TextTable.of(["stage", "vs\nfirst"], [("s01", 1)]).text().splitlines() == [
        "          vs",
        "stage  first",
        "-----  -----",
        "s01        1",
    ]


def test_a_row_has_a_value_for_each_column():
    with pytest.raises(ValueError):
        TextTable.of(["a", "b"], [(1,)])


def test_markdown_shows_text_as_it_is():
    assert markdown_text("a_b *c* [d] $e$ ~~f~~ &amp; & g_ _h `i|_*j`") == (
        r"a_b \*c\* \[d\] \$e\$ \~\~f\~\~ \&amp; & g\_ \_h `i\|_*j`"
    )
    assert markdown_text("aten::__or__ a__b") == r"aten::\_\_or\_\_ a__b"
    assert markdown_text("an odd ` and\na line") == r"an odd \` and<br>a line"


def test_a_table_in_markdown():
    assert TextTable.of(["what|", "n"], [("a_", 1), ("bad", 2), ("so bad", 3)]).markdown(bold="bad").splitlines() == [
        r"| what\| | n |",
        "| --- | ---: |",
        r"| a\_ | 1 |",
        "| **bad** | 2 |",
        "| so bad | 3 |",
    ]
    assert TextTable.of(["a"], []).markdown().splitlines() == ["| a |", "| --- |", "", "(no rows)"]


# Numbers


def test_floats_are_rounded_and_nothing_else_is():
    assert [rounded(value, 2) for value in (1234.5678, 1234, True, "x")] == ["1,234.57", "1234", "True", "x"]
    assert [verbatim(value) for value in (1234567, 0.5, True, "x", np.int64(28672))] == [
        "1,234,567",
        "0.5",
        "True",
        "x",
        "28,672",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12.46312, "12.46"),
        (0.00123456, "0.001235"),
        (12345.6, "12,346"),
        (9.9999, "10.000"),
        (0, "0"),
        (-3.14159, "-3.142"),
        (1e-9, "1.000e-09"),
        (2.5, "2.500"),
    ],
)
def test_measured_figures_have_four_digits(value, text):
    assert significant(value) == text


def test_printed_figures_stay_as_they_are():
    assert [exact(x) for x in (408.43, 7.815151, 4192.88, 3.4, 30.0, 100, 18.5185185185, 0.443)] == [
        "408.43",
        "7.815151",
        "4,192.88",
        "3.4",
        "30",
        "100",
        "18.518519",
        "0.443",
    ]
    assert [share(x) for x in (0.98312, 0.0354, 1.0)] == ["98.3%", "3.54%", "100%"]


def test_wide_characters_take_two_columns():
    table = TextTable.of(["名前", "n"], [["プロンプト", 1], ["cafe\u0301", 20]])
    lines = table.text().split("\n")
    assert lines == ["名前         n", "----------  --", "プロンプト   1", "cafe\u0301        20"]
    assert table.text(16).split("\n") == lines
    narrow = TextTable.of(["text"], [["日本語のとても長い文章です" * 3]]).text(21).split("\n")
    assert narrow[1] == "-" * 21 and all(text_width(line) <= 21 for line in narrow)
    assert "".join(narrow[2:]) == "日本語のとても長い文章です" * 3


def test_a_table_of_many_columns_stands_close_and_breaks_its_names():
    names = [f"n_{i}" for i in range(MANY + 1)]
    wide, narrow = (
        TextTable.of(columns, [["s01_naive"] + [1] * (len(columns) - 1)]).html() for columns in (names, names[1:])
    )
    assert (
        "s01_<wbr>naive" in wide and wide.count(CLOSE) == 2 * len(names) and "<wbr>" not in wide.partition("<tbody>")[0]
    )
    assert "s01_naive" in narrow and CLOSE not in narrow
