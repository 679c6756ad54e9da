"""The reproduction's report as tables, Markdown and JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import mistune
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from made_up import (
    BAD_REPORT,
    COMMAND,
    COMPUTED,
    DIFFERENT_FACT,
    EQUAL_FACT,
    EXPLAINED_FACT,
    INFERRED,
    REPORT,
    SEEN,
    STATED,
)

from course.posts.data import Source
from course.posts.report import Fact, Grid, Time, judge
from course.posts.report.content import change, change_verdict
from course.posts.report.tables import MARKS, facts_table, grid_table, marks, notes, times_table
from course.posts.report.template import to_markdown, written
from course.posts.report.terminal import summary
from roseinfer.display.text_table import TextTable

# Figures


def test_a_rate_is_measured_against_its_floor_the_other_way_round():
    assert Time("", "tok/s", None, 50.0, floor=200.0).of_floor == 0.25
    assert Time("", "GB/s", None, 50.0, floor=200.0).of_floor == 0.25
    assert Time("", "ms", None, 200.0, floor=50.0).of_floor == 0.25
    assert Time("", "ms/step", None, 200.0, floor=50.0).of_floor == 0.25  # a time, although it has "/s" in it
    assert Time("", "ms", None, 200.0).of_floor is None
    assert Time("", "ms", None, None, floor=50.0).of_floor is None


# Tables


def test_facts_are_verbatim_and_why_is_there_only_where_something_is_explained():
    table = facts_table([EQUAL_FACT, EXPLAINED_FACT])
    assert table.names == ["what", "post", "here", "verdict", "why"]
    assert table.rows == [
        ["aten::copy_", "192", "192", "equal", ""],
        ["aten::slice", "1,536", "384", "explained", "torch 2.13: no slice for `:`"],
    ]
    assert facts_table([EQUAL_FACT]).names == ["what", "post", "here", "verdict"]


def test_times_stand_beside_the_posts_with_ratio_and_floor():
    with_floor, without = (times_table(section.times) for section in REPORT.sections[1:3])
    assert with_floor.names == ["what", "unit", "post", "here", "here ÷ post", "floor", "of floor"]
    assert with_floor.rows == [
        ["completion", "tok/s", "408.43", "61.17", "0.150", "244.7", "25.0%"],
        ["step", "ms", "12.463", "61.33", "4.92", "15.33", "25.0%"],
        ["TPOT", "ms", "15.32", "–", "–", "–", "–"],
    ]
    assert without.rows == [["TTFT", "ms", "–", "2.500", "–"]]
    assert without.right == [False, False, True, True, True]


def test_a_column_is_one_of_numbers_only_if_all_its_values_are():
    rows = grid_table(REPORT.sections[-1].grids[0])
    assert rows.right == [False, True, True]
    assert rows.rows == [["x", "28,672", "0.9375"], ["y", "–", "1"]]
    different = facts_table(BAD_REPORT.different)
    why = "not explained: the rule (one table) gives 0"
    assert different.rows == [["Rebuilds: a|b <rows>", "x & y", "768", "different", why]]
    assert different.right == [False, False, True, False, False]


def test_what_the_post_does_not_state_has_a_mark_and_a_note():
    facts = [
        judge("stated", 56, 56, source=STATED),
        judge("seen", 224, 0, rule=0, why="one call", source=SEEN),
        judge("also seen", 0, 4, rule=4, why="one call", source=SEEN),
        judge("computed", 1448, 1448, source=COMPUTED),
    ]
    table = facts_table(facts)
    assert [row[1] for row in table.rows] == ["56", "224 †", "0 †", "1,448 ‡"]
    assert table.right == [False, True, True, False, False]
    assert notes(facts) == [
        "† seen in its public repository: engine.py, <append>",
        "‡ computed: 28 layers x 8",
    ]


def test_times_are_marked_too_and_a_missing_one_is_not():
    times = [Time("a", "ms", 0.5, 1.0, source=COMPUTED), Time("b", "ms", None, 1.0, source=INFERRED)]
    assert [row[2] for row in times_table(times).rows] == ["0.5 †", "–"]
    assert notes(times) == ["† computed: 28 layers x 8"]


def test_there_are_marks_enough():
    sources = [Source("computed", str(i)) for i in range(2 * len(MARKS) + 1)]
    of = marks([Time("", "ms", 1.0, 1.0, source=source) for source in sources])
    assert list(of) == sources and len(set(of.values())) == len(sources)


def test_a_different_fact_says_at_once_what_its_value_is():
    fact = judge("copies", 448, 7, rule=0, why="one call", source=SEEN)
    times = [Time("a", "ms", 1.5, 1, source=SEEN)]
    report = replace(
        REPORT, sections=[written("## Writes\n\n{{ facts }}\n\n{{ times }}", {"facts": [fact], "times": times})]
    )
    said = summary(report).splitlines()
    assert "DIFFERENT: Writes: copies: post 448 (seen in its public repository), here 7; " in said[2]
    assert f"† {SEEN}" in said


def test_a_single_run_has_no_spread_and_shows_no_change():
    grid = Grid.of_runs("stage", {"s02": [61.89], "s03": [50.0, 60.0, 58.0], "s04": []}, decimals=1)
    assert grid_table(grid).rows == [["s02", "1", "61.9", "–", "–"], ["s03", "3", "58", "50", "60"]]
    assert change([61.89], [55.92]) is None and change_verdict([61.89], [55.92]) == "one run"
    assert change([61.89, 60.0], [55.92]) is None


@pytest.mark.parametrize(
    ("after", "shown", "verdict"),
    [
        ([21.0, 22.0, 23.0], "+100.0%", "higher in 3 of 3 runs"),
        ([5.0, 5.5, 6.0], "-50.0%", "lower in 3 of 3 runs"),
        ([12.0, 11.5, 13.0], "+9.1%", "ranges overlap"),
    ],
)
def test_what_runs_show_of_a_change(after, shown, verdict):
    before = [10.0, 11.0, 12.0]
    assert (change(before, after), change_verdict(before, after)) == (shown, verdict)


# Markdown


MARKDOWN = to_markdown(BAD_REPORT, COMMAND)


def test_the_order_of_the_parts():
    lines = MARKDOWN.splitlines()
    assert [line.lstrip("# ") for line in lines if re.match("#{1,2} ", line)] == [
        "Post 000 reproduced: Performance",
        "The post",
        "Here",
        "Verdicts",
        "Ops of `append_token`",
        "Times",
        "No floors",
        "A grid",
        "Rebuilds",
        "Not run here, and what it needs",
    ]
    assert "never judged" in MARKDOWN.split("\n\n")[-1]


def test_markdown_of_a_report():
    lines = MARKDOWN.splitlines()
    assert lines[0] == "# Post 000 reproduced: Performance"
    for line in (
        r"- Model: GPT-2 \<small> (inferred: a file's name)",
        "- Machine: a GPU",
        "- torch: not stated",
        "- Command: `run *it*`",
        "- Device: a CPU",
        "- Versions: python 3.11.7, torch 2.13.0",
        "- Commit: 571cbb6-dirty",
        "- Date: 2026-01-31 23:59 UTC",
        "- Arguments: `device=cpu`, `quick=False`",
        f"- Run again: `{COMMAND}`",
        "**1 equal, 1 explained, 1 different.**",
        "| what | post | here | verdict | why |",
        "| --- | ---: | ---: | --- | --- |",
        r"| aten::copy\_ | 192 | 192 | equal |  |",
        r"| a\|b \<rows> | x & y | 768 | **different** | not explained: the rule (one table) gives 0 |",
        "| step | ms | 12.463 | 61.33 | 4.92 | 15.33 | 25.0% |",
        "(no rows)",
        "| device spans | an NVIDIA GPU |",
    ):
        assert line in lines, line


def filled(text, template="{{ text }}"):
    """A paragraph of a report."""
    return written(f"## A title\n\n{template}", {"text": text}).markdown.removeprefix("## A title\n\n")


def test_what_a_template_names_and_is_not_measured_is_an_error():
    with pytest.raises(UndefinedError, match="'text_of_it' is undefined"):
        filled("one", "{{ text_of_it }}")


def test_a_fence_is_longer_than_what_it_holds():
    assert filled("a ``` b", "{{ text | fenced }}") == "````\na ``` b\n````"


class Shown(HTMLParser):
    """Elements of a page of Markdown, and the text of every table's cells."""

    def __init__(self, markdown):
        super().__init__()
        self.tags, self.rows, self.in_cell = set(), [], False
        self.feed(mistune.create_markdown(plugins=["table"])(markdown))

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        self.in_cell = self.in_cell or tag in ("td", "th")
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self.in_cell = self.in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self.in_cell:
            self.rows[-1][-1] += data


def test_text_is_shown_as_it_is():
    shown = Shown(MARKDOWN)
    assert ["a|b <rows>", "x & y", "768", "different", "not explained: the rule (one table) gives 0"] in shown.rows
    assert shown.tags.isdisjoint({"rows", "small"})


@settings(deadline=None, max_examples=200)
@given(st.text("ab_*~$|[]<>&;#\\! .()1-+:/'\"=^", min_size=1).map(str.strip).filter(bool))
def test_no_text_is_taken_for_markdown(text):
    shown = Shown(f"{filled(text, 'so {{ text }}')}\n\n{TextTable.of(['text'], [(text,)]).markdown()}\n")
    assert shown.rows == [["text"], [text]]
    assert shown.tags.isdisjoint({"em", "strong", "a", "code", "dl", "h1", "pre", "del", "hr"})


# JSON


def test_json_holds_what_was_measured():
    data = json.loads(BAD_REPORT.to_json())
    expected = json.loads(json.dumps(asdict(BAD_REPORT)))
    assert all(section.pop("markdown").startswith("## ") for section in expected["sections"])
    assert data == expected | {"verdicts": {"equal": 1, "explained": 1, "different": 1}}
    assert data["sections"][0]["samples"] == {"runs": [0.1, 0.25]}
    assert Fact(**data["sections"][-1]["facts"][0]) == DIFFERENT_FACT
