"""Lesson 01: the sentences on speeds follow from the table, whichever stage is faster."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from roseinfer import teach
from stages import NaiveCat, PreallocGather


def compared(*speeds):
    """A table as compare_shapes makes it, with a batch per speed."""
    rows = [{"batch": f"batch {i}", "speed": speed} for i, speed in enumerate(speeds)]
    frames = [
        pd.DataFrame(rows).assign(stage=NaiveCat.name, speed=1.0),
        pd.DataFrame(rows).assign(stage=PreallocGather.name),
    ]
    return SimpleNamespace(df=pd.concat(frames))


def test_losses_are_named():
    said = teach.say_losses(compared(2.0, 0.5, 1.04, 0.96), PreallocGather)
    assert repr(said) == "computed from this run: s02_prealloc_gather against s01_naive_cat"
    assert said.sentences == (
        "batch 0: ×2.00, faster.",
        "batch 1: ×0.50, slower.",
        "batch 2: ×1.04, too close to call from a few steps.",
        "batch 3: ×0.96, too close to call from a few steps.",
        "**It loses on: batch 1.**",
    )


def test_no_loss_is_told_as_none():
    *_, verdict = teach.say_losses(compared(1.5, 1.2), PreallocGather).sentences
    assert verdict == "**No batch here shows a loss. The lowest speed: batch 1.**"


def test_a_table_that_compares_nothing_is_refused():
    with pytest.raises(ValueError, match="must compare s01_naive_cat with a stage that comes first"):
        teach.say_losses(compared(1.0), NaiveCat)
