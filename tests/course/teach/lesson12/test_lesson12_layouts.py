"""Lesson 12: layouts are timed for what they hold, and the sentences follow from the times."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from course import teach
from course.contract.small_models import small_model
from course.teach.lesson12 import layouts
from stages import FusedStep

QKV_APART = teach.with_qkv_apart(FusedStep)


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


def timed(packed, eight_bits):
    names = "1 row", "64 rows"
    rows = [{"layout": "float32, packed", **dict(zip(names, packed, strict=True))}]
    rows.append({"layout": "bfloat16, packed", **dict(zip(names, (8, 125), strict=True))})
    rows.append({"layout": "8 bits", **dict(zip(names, eight_bits, strict=True))})
    return SimpleNamespace(df=pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("eight_bits", "verdict"),
    [
        ((5, 100), "Fewer bytes gain less with 64 rows than with 1 row. 8 bits are slower at none of these sizes."),
        ((5, 20), "Here fewer bytes gain more with 64 rows than with 1 row. 8 bits are slower at none of these sizes."),
        (
            (5, 50),
            "Here fewer bytes gain as much with 64 rows as with 1 row. 8 bits are slower at none of these sizes.",
        ),
        ((5, 200), "Fewer bytes gain less with 64 rows than with 1 row. 8 bits are slower with 64 rows."),
    ],
)
def test_the_verdict_follows_from_the_times(eight_bits, verdict):
    said = teach.say_layouts(timed((10, 100), eight_bits))
    eight, half, last = said.sentences
    assert eight.startswith("8 bits against packed float32: 1 row ×2.0, 64 rows ×") and last == f"**{verdict}**"
    assert half == "bfloat16 against packed float32: 1 row ×1.2, 64 rows ×0.8."


def test_three_products_for_one_and_the_same_tokens(small):
    layers = small.config.num_layers
    apart, joined = (teach.products_of_a_step(stage, small) for stage in (QKV_APART, FusedStep))
    assert (apart, joined) == (6 * layers + 1, 4 * layers + 1)
    assert "differs" not in repr(teach.prove(QKV_APART, small, max_tokens=3))


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
