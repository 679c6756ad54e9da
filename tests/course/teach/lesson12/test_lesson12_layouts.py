"""Lesson 12: layouts are timed for what they hold."""

from __future__ import annotations

import pytest

from course import teach
from course.contract.small_models import small_model
from course.teach.lesson12 import layouts


@pytest.fixture(autouse=True)
def one_pass(monkeypatch):
    monkeypatch.setattr(layouts, "passes", lambda run, device, seconds: [run() and 0 or 1e-3])


@pytest.mark.slow
def test_every_matrix_of_a_step_is_listed():
    model = small_model()
    rows = teach.time_matrices(model).df
    c = model.config
    matrices = sum(p.nbytes for p in model.parameters() if p.dim() > 1) - model.wpe.weight.nbytes
    assert round(1e6 * rows["MB per step"].sum()) == matrices
    assert list(rows["per step"]) == [c.num_layers] * 4 + [1]


def test_layouts_hold_fewer_and_fewer_bytes():
    timed = teach.time_layouts(small_model(), (1, 4))
    rows = timed.df.set_index("layout")
    assert rows.at["float32, row by row", "bytes"] == rows.at["float32, packed", "bytes"]
    for fewer in ("bfloat16, packed", "8 bits"):
        assert rows.at[fewer, "bytes"] < rows.at["float32, packed", "bytes"]
    assert {"1 row", "4 rows"} <= set(rows.columns) and "1 row" not in repr(timed)


def test_weights_of_fewer_bits_take_fewer_values():
    model = teach.round_weights(small_model(), bits=4)
    row = model.h[0].mlp.c_fc.weight[0]
    assert len(row.unique()) <= 15 and row.abs().max() > 0


def test_a_sign_needs_a_step():
    with pytest.raises(ValueError, match="bits must be at least 2, for a sign and a step, got 1"):
        teach.round_weights(small_model(), bits=1)


def test_inputs_are_looked_at_and_left_alone():
    model = small_model()
    rows = teach.largest_over_median(model, list(range(20)), layer=1).df
    assert len(rows) == 4 and (rows["largest / median"] >= 1).all()
    assert not any(layer._forward_pre_hooks for layer in model.modules())
