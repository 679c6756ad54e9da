"""Lesson 12: where weights lie, and what fewer bits do to a text."""

from __future__ import annotations

import math
import weakref

import pytest
import torch

from course import teach
from course.contract.small_models import small_model
from course.teach.lesson12 import layouts
from course.teach.lesson12.held_out import DRAWN, UNSEEN
from course.teach.lesson12.layer_errors import OUTPUT, layer_errors
from course.teach.lesson12.real_price import token_costs
from course.teach.lesson12.text_price import log_probs, rounded
from roseinfer import LLM
from roseinfer.bench.contenders import StageContender
from roseinfer.models import load_model, load_tokenizer
from roseinfer.models.weights import prepared_copy, weight_bytes
from roseinfer.reference import reference_logits
from stages import FusedStep


def cells_of(grid):
    """(row, column) -> place of each panel."""
    return [{(cell.row, cell.column): cell.text for cell in panel.cells} for panel in grid.frames[0].panels]


def test_every_weight_has_one_place_in_either_order():
    plain, packed = cells_of(teach.draw_weight_order())
    assert sorted(plain.values()) == sorted(packed.values()) == list(range(64))
    assert plain[3, 2] == 3 * 8 + 2
    assert [packed[row, 2] for row in range(4)] == [8, 9, 10, 11], "outputs of one input lie side by side"
    assert packed[4, 0] == 32, "the second block begins after the first"


def test_the_price_of_a_text():
    model, text = small_model(), list(range(40))
    with torch.no_grad():
        table = teach.text_price(model, {"the same": small_model(), "another": small_model(seed=2)}, {"a": [text]})
    df = table.df.set_index("model")
    assert df.loc["as it is", "KL, a"] == pytest.approx(0, abs=1e-6) == df.loc["the same", "KL, a"]
    assert df.loc["another", "KL, a"] > 0.1
    assert df.loc["the same", "perplexity, a"] == pytest.approx(df.loc["as it is", "perplexity, a"])
    assert "KL" not in repr(table), "numbers of a machine are no exact facts"


def test_several_texts_count_by_their_tokens():
    model, other = small_model(), small_model(seed=2)
    texts = [list(range(30)), [5, 6]]
    with torch.no_grad():
        each = [teach.text_price(model, {"other": other}, {"a": [text]}).df.loc[1] for text in texts]
        both = teach.text_price(model, {"other": other}, {"a": texts}).df.loc[1]
    nats = [math.log(one["perplexity, a"]) for one in each]
    assert math.log(both["perplexity, a"]) == pytest.approx((29 * nats[0] + nats[1]) / 30, rel=1e-4)
    assert both["KL, a"] == pytest.approx((30 * each[0]["KL, a"] + 2 * each[1]["KL, a"]) / 32, rel=1e-4)
    assert both["bytes"] == weight_bytes(other)


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary():
    model = small_model()
    model.wte.weight.zero_()  # the output matrix, too: every token is as likely
    df = teach.text_price(model, {}, {"a": [[1, 2, 3]]}).df
    assert math.isclose(df.loc[0, "perplexity, a"], model.config.vocab_size, rel_tol=1e-5)


def test_a_text_of_one_token_has_no_price():
    with pytest.raises(ValueError, match="at least two tokens each, got fewer in short"):
        teach.text_price(small_model(), {}, {"long": [[1, 2]], "short": [[1, 2], [1]]})


def test_a_group_shares_a_scale():
    x = torch.tensor([[127.0, 0.4, 0.6, 2.0, 0.4, 0.6]])
    assert rounded(x, 6).tolist() == [[127, 0, 1, 2, 0, 1]]
    by_groups = rounded(x, 3)
    assert by_groups[0, :3].tolist() == [127, 0, 1]
    torch.testing.assert_close(by_groups[0, 3:], x[0, 3:], rtol=0, atol=1 / 127)


def test_rounded_inputs_change_a_model_and_zeros_stay():
    text = list(range(30))
    exact, fewer_bits = small_model(), teach.round_inputs(small_model(), group=64)
    df = teach.text_price(exact, {"rounded": fewer_bits}, {"a": [text]}).df
    assert 0 < df.loc[1, "KL, a"] < 1
    assert rounded(torch.zeros(2, 5), 2).eq(0).all()


def test_held_out_texts_begin_where_a_paragraph_begins():
    texts = teach.held_out_texts()
    assert list(texts) == [DRAWN, UNSEEN] and [len(texts[kind]) for kind in texts] == [40, 40]
    first = load_tokenizer("tiny").token_to_id("<|endoftext|>")
    assert all(token_ids[0] == first for several in texts.values() for token_ids in several)
    assert {len(token_ids) for token_ids in texts[DRAWN]} == {65}


def test_each_part_is_quantised_alone_and_the_model_stays():
    model, texts = load_model("tiny"), [list(range(20)), [7, 8, 9]]
    before = reference_logits(model, texts[0])
    errors = layer_errors(model, texts).df
    assert list(errors["quantised alone"]) == [*(f"layer {i}" for i in range(4)), OUTPUT]
    assert (errors["8 bits"] > 0).all() and (errors["4 bits"] > 2 * errors["8 bits"]).all()
    assert torch.equal(reference_logits(model, texts[0]), before)
    whole, exact = (torch.cat([reference_logits(m, t) for t in texts]) for m in (prepared_copy(model, "int8"), model))
    assert errors["8 bits"].max() < (whole - exact).square().mean().sqrt() / exact.std()


def test_shapes_and_races_count_the_same_step():
    """A stage may choose its tokens inside the step; neither count has that in it."""
    table = teach.compare_shapes([FusedStep], small_model(), {"a batch": [5, 9]}, steps=2)
    stage = StageContender(FusedStep, small_model(), [[1] * 5, [2] * 9], max_new_tokens=4)
    counts = stage.counts(0)
    assert [table.df.loc[0, name] for name in ("copies", "cats", "selects")] == [
        counts[name] for name in ("copies", "cats", "selects")
    ]


def test_one_layout_at_a_time_is_in_memory(monkeypatch):
    alive, made = weakref.WeakKeyDictionary(), layouts._in_layout

    def watched(name, linear):
        product, num_bytes = made(name, linear)
        alive[product] = name
        assert set(alive.values()) == {name}
        return product, num_bytes

    monkeypatch.setattr(layouts, "_in_layout", watched)
    monkeypatch.setattr(layouts, "SECONDS", 0.001)
    assert teach.time_layouts(small_model(), (1,)).df["layout"].tolist() == list(layouts.LAYOUTS)


@pytest.mark.slow
def test_the_cost_of_a_token_is_the_models():
    llm, text = LLM("tiny", device="cpu", dtype="float32"), "Return a copy of the list."
    ids = load_tokenizer("tiny").encode(text).ids
    own = log_probs(load_model("tiny", device="cpu"), ids)
    expected = [-float(row[token]) for row, token in zip(own[:-1], ids[1:], strict=True)]
    assert token_costs(llm, [text, text]) == pytest.approx(2 * expected, abs=1e-3)
