"""A section that claims a gain or a loss shows one, or says in a computed sentence what this run shows."""

from __future__ import annotations

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course import teach
from roseinfer.display.table import Table
from roseinfer.paths import ROOT
from tools.claims import unproved_claims

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cell(view):
    return new_code_cell("1", outputs=[new_output("display_data", data=view._repr_mimebundle_())])


def table(column, figures, stage="stage"):
    rows = [{stage: name, column: figure} for name, figure in figures.items()]
    return cell(Table(pd.DataFrame(rows), exact=[stage], live=[column]))


def race(verdict):
    return table("against the first", {"s08_a": "", "s09_b": verdict, "HF generate": "-50.0%, slower in 3 of 3 runs"})


def section(heading, *cells):
    return new_notebook(cells=[new_markdown_cell(f"## {heading}"), *cells, new_markdown_cell("## Your turn")])


SAID = cell(teach.say("this run", "No loss here."))
FASTER, SLOWER = "+10.0%, faster in 3 of 3 runs", "-10.0%, slower in 3 of 3 runs"
GAIN, NO_GAIN = {"s08_a": "×1.00", "s09_b": "×1.16"}, {"s08_a": "×1.00", "s09_b": "×0.84"}


@pytest.mark.parametrize(
    ("notebook", "found"),
    [
        (section("Prove it faster", race(FASTER)), 0),
        (section("Prove it faster", race("+0.1%, ranges overlap")), 0),
        (section("Prove it faster", race(SLOWER)), 1),
        (section("Prove it faster", race(SLOWER), SAID), 0),
        (section("See it slow", race(SLOWER)), 0),
        (section("Where it loses", table("speed", NO_GAIN)), 0),
        (section("Where it loses", table("speed", GAIN)), 1),
        (section("Where it loses", table("speed", GAIN), SAID), 0),
        (section("Where it loses", table("speed", GAIN, stage="layout")), 0),
        (section("Where it loses", table("bytes", {"s09_b": "12"})), 0),
    ],
)
def test_a_heading_is_held_against_the_tables_below_it(notebook, found):
    assert len(unproved_claims(notebook, "09")) == found


def test_each_point_of_where_it_loses_is_a_claim_of_its_own():
    points = [
        new_markdown_cell("**On short prompts.**"),
        table("speed", GAIN),
        new_markdown_cell("**On long ones.**"),
        table("speed", NO_GAIN),
    ]
    found = unproved_claims(section("Where it loses", *points), "09")
    assert found == ["cell 2: Where it loses, and nothing in it is slower"]


def test_prose_may_say_that_a_stage_is_slower():
    cells = [race(SLOWER), new_markdown_cell("As long as it is written in PyTorch, it is slower.")]
    assert unproved_claims(section("Prove it faster", *cells), "09") == []


def test_a_race_without_the_lessons_stage_claims_nothing():
    assert unproved_claims(section("Prove it faster", race(SLOWER)), "10") == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_course_shows_what_it_claims(path):
    assert unproved_claims(nbformat.read(path, as_version=4), path.stem[:2]) == []
