"""Lesson 05: the sentences on speeds follow from the measured ratios, whichever stage is faster."""

from __future__ import annotations

import pandas as pd
import pytest

from course.teach import say_speeds
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.display.table import Table


def race(**ratios):
    rows = [{"stage": name, "vs_first": ratio} for name, ratio in ratios.items()]
    blank = dict.fromkeys(("host", "device", "versions", "commit", "model", "arguments", "machine", "floor"), {})
    return LadderResult(**blank, rows=rows, samples=[])


def compared(*rows):
    return Table(pd.DataFrame([dict(zip(("batch", "stage", "speed"), row, strict=True)) for row in rows]), exact=[])


@pytest.mark.parametrize(
    ("ratio", "sentence"),
    [
        (0.5, "**b** is **slower** than a here: ×0.50 its speed."),
        (1.05, "**b** and a decode about as fast here (×1.05)."),
        (3, "**b** is **faster** than a here: ×3.00 its speed."),
    ],
)
def test_a_race_is_told_as_it_went(ratio, sentence):
    said = say_speeds(race(a=1.0, b=ratio), "Because.")
    assert said.sentences == (sentence, "Because.")
    assert repr(said) == "computed from this run: which stage decodes faster"


def test_batches_are_told_by_stage():
    table = compared(
        ("x", "a", 1.0), ("x", "b", 0.5), ("y", "a", 1.0), ("y", "b", 1.01), ("z", "a", 1.0), ("z", "b", 4)
    )
    [sentence] = say_speeds(table).sentences
    assert sentence == "**b** against a: faster on z (×4.00); slower on x (×0.50); about as fast on y (×1.01)."
    [sentence] = say_speeds(compared(("x", "a", 1.0), ("x", "b", 1.0))).sentences
    assert sentence == "**b** against a: about as fast on x (×1.00)."


def test_a_table_of_something_else_is_refused():
    with pytest.raises(ValueError, match="must have the columns batch, stage and speed, got "):
        say_speeds(Table(pd.DataFrame([{"n": 1}]), exact=["n"]))
