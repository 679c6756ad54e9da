"""Lesson 12: where weights lie, and what fewer bits do to a text."""

from __future__ import annotations

import math

import pytest
import torch

from roseinfer import teach
from roseinfer.bench.contenders import StageContender
from roseinfer.contract.small_models import small_model
from roseinfer.teach.lesson12.text_price import _rounded
from stages import FusedStep


def cells_of(grid):
    """(row, column) -> place of each panel."""
    return [{(cell.row, cell.column): cell.text for cell in panel.cells} for panel in grid.frames[0].panels]


def test_every_weight_has_one_place_in_either_order():
    plain, packed = cells_of(teach.draw_weight_order(8, 6, 4))
    assert sorted(plain.values()) == sorted(packed.values()) == list(range(48))
    assert plain[3, 2] == 3 * 6 + 2
    assert [packed[row, 2] for row in range(4)] == [8, 9, 10, 11], "outputs of one input lie side by side"
    assert packed[4, 0] == 24, "the second block begins after the first"


@pytest.mark.parametrize("sizes", [(0, 8, 4), (8, 0, 4), (8, 8, 0), (8, 8, 3)])
def test_sizes_that_make_no_picture(sizes):
    with pytest.raises(ValueError, match="num_rows|width|block"):
        teach.draw_weight_order(*sizes)


def test_the_price_of_a_text():
    model, text = small_model(), list(range(40))
    with torch.no_grad():
        table = teach.text_price(model, {"the same": small_model(), "another": small_model(seed=2)}, {"a": text})
    df = table.df.set_index("model")
    assert df.loc["as it is", "KL, a"] == pytest.approx(0, abs=1e-6) == df.loc["the same", "KL, a"]
    assert df.loc["another", "KL, a"] > 0.1
    assert df.loc["the same", "perplexity, a"] == pytest.approx(df.loc["as it is", "perplexity, a"])
    assert "KL" not in repr(table), "numbers of a machine are no exact facts"


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary():
    model = small_model()
    model.wte.weight.zero_()  # the output matrix, too: every token is as likely
    df = teach.text_price(model, {}, {"a": [1, 2, 3]}).df
    assert math.isclose(df.loc[0, "perplexity, a"], model.config.vocab_size, rel_tol=1e-5)


def test_a_text_of_one_token_has_no_price():
    with pytest.raises(ValueError, match="at least two tokens each, got fewer in short"):
        teach.text_price(small_model(), {}, {"long": [1, 2], "short": [1]})


def test_a_group_shares_a_scale():
    x = torch.tensor([[127.0, 0.4, 0.6, 2.0, 0.4, 0.6]])
    assert _rounded(x, 6).tolist() == [[127, 0, 1, 2, 0, 1]]
    rounded = _rounded(x, 3)
    assert rounded[0, :3].tolist() == [127, 0, 1]
    torch.testing.assert_close(rounded[0, 3:], x[0, 3:], rtol=0, atol=1 / 127)


def test_rounded_inputs_change_a_model_and_zeros_stay():
    text = list(range(30))
    exact, rounded = small_model(), teach.round_inputs(small_model(), group=64)
    df = teach.text_price(exact, {"rounded": rounded}, {"a": text}).df
    assert 0 < df.loc[1, "KL, a"] < 1
    assert _rounded(torch.zeros(2, 5), 2).eq(0).all()


def test_shapes_and_races_count_the_same_step():
    """A stage may choose its tokens inside the step; neither count has that in it."""
    table = teach.compare_shapes([FusedStep], small_model(), {"a batch": [5, 9]}, steps=2)
    stage = StageContender(FusedStep, small_model(), [[1] * 5, [2] * 9], max_new_tokens=4)
    counts = stage.counts(0)
    assert [table.df.loc[0, name] for name in ("copies", "cats", "selects")] == [
        counts[name] for name in ("copies", "cats", "selects")
    ]
