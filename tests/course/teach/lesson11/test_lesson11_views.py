"""Lesson 11: its pictures and its two comparisons say exact facts."""

from __future__ import annotations

import pytest
import torch

from course.contract.small_models import small_model
from course.teach import compare_prefills, compare_steps, draw_clock_race, draw_flat_batch
from roseinfer.sequence import SamplingParams
from stages import FusedStep, OneTable


def test_the_clocks_race_says_who_won_and_shows_every_draw():
    chart = draw_clock_race(torch.tensor([2.0, 1.0, 1.0]), draws=40, seed=3)
    noise = torch.empty(40, 3).exponential_(generator=torch.Generator().manual_seed(3))
    won = torch.bincount((torch.tensor([0.5, 0.25, 0.25]) / noise).argmax(-1), minlength=3).tolist()
    assert repr(chart) == (
        f"Exponential race of 3 clocks, seed 3. Won: {won[0]} of 40 for p = 0.50, {won[1]} of 40 for p = 0.25, "
        f"{won[2]} of 40 for p = 0.25."
    )
    (data,) = chart.spec["datasets"].values() if "datasets" in chart.spec else [chart.spec["data"]["values"]]
    assert len(data.strip().splitlines()) == 1 + 40 * 3
    (slider,) = chart.spec["params"]
    assert (slider["value"], slider["bind"]["min"], slider["bind"]["max"]) == (40, 1, 40)


def test_a_flat_batch_is_told_in_rows():
    assert repr(draw_flat_batch([0, 2, 3])) == (
        "Prompts of [2, 1] tokens. Padded, they are 2 x 2 = 4 rows; flat, 3. query_start is [0, 2, 3], the last rows "
        "are [1, 2]."
    )


@pytest.mark.parametrize("starts", [[], [0], [1, 2], [0, 3, 3], [0, 3, 2]])
def test_what_is_no_query_start_is_refused(starts):
    with pytest.raises(ValueError, match="query_start must begin with 0 and grow"):
        draw_flat_batch(starts)


@pytest.fixture(scope="module")
def model():
    return small_model()


def test_prefills_are_compared_by_their_products(model):
    table = compare_prefills([OneTable, FusedStep], model, {"three": [2, 7, 1]}, repeats=1)
    products = 4 * model.config.num_layers + 1
    assert table.df[["prompts", "linear calls", "reads", "tokens"]].values.tolist() == [
        [3, 3 * products, 6, "equal"],
        [3, products, 1, "equal"],
    ]
    assert list(table.live) == ["ms", "speed"]


def test_steps_are_compared_by_what_the_host_reads(model):
    greedy, drawn = SamplingParams(), SamplingParams(temperature=1.0, seed=1)
    mix = [greedy, drawn, SamplingParams(temperature=1.0, top_k=3, seed=2), greedy]
    table = compare_steps([OneTable, FusedStep], model, {"mix": mix, "greedy": [greedy] * 3}, repeats=1)
    # Stage 10: is it finite, which tokens, is it finite again, and a token for each drawn row.
    assert table.df[["reads", "bytes", "noise rows", "sorted rows", "tokens"]].values.tolist() == [
        [5, 4 * 4 + 8 * 4 + 4 * 2 + 8 * 2, 2, 1, "equal"],
        [1, 8 * 4, 4 + 2, 4, "equal"],
        [2, 4 * 3 + 8 * 3, 0, 0, "equal"],
        [1, 8 * 3, 0, 0, "equal"],
    ]


def test_tokens_that_differ_are_told(model):
    class AlwaysZero(FusedStep):
        def choose(self, logits, seqs):
            return torch.zeros(len(seqs), dtype=torch.int64)

    table = compare_steps([OneTable, AlwaysZero], model, {"greedy": [SamplingParams()] * 4}, repeats=1)
    assert table.df["tokens"].tolist() == ["equal", "differ"]
