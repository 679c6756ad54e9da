"""The walk of the online softmax: its text, and what its chart says of each block, before and after a drag."""

from __future__ import annotations

from functools import cache
from math import ceil
from xml.etree import ElementTree

import pytest
import torch
import vl_convert

from course.teach import walk_online_softmax

SCORES = [0.5, 1.2, -0.3, 0.8, 2.6]
VALUES = [[1.0, -0.5], [0.4, 0.8], [-0.6, 0.1], [0.3, 0.3], [-1.0, 0.0]]


@cache
def walk(block_size=2):
    return walk_online_softmax(torch.tensor(SCORES), values=torch.tensor(VALUES), block_size=block_size)


def texts(page, **signals) -> set[str]:
    """Texts of the chart where a reader has set these signals."""
    params = [one | {"value": signals[one["name"]]} if one["name"] in signals else one for one in page.spec["params"]]
    svg = vl_convert.vegalite_to_svg(page.spec | {"params": params})
    found = ("".join(one.itertext()) for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"))
    return {text.replace("−", "-") for text in found}


def number(value) -> str:
    """Three decimals as the page writes them: what rounds to zero has no sign."""
    return f"{round(float(value), 3) + 0.0:.3f}"


def said_of(block: int, block_size: int, scores: list[float]) -> set[str]:
    """What the chart has to say of the block, from one softmax for each number of tokens."""
    s, read, earlier = torch.tensor(scores).double(), block * block_size, (block - 1) * block_size
    table = torch.cat([torch.ones(len(s), 1), torch.tensor(VALUES)], 1).double()
    m, m_old = s[:read].max(), s[: earlier or read].max()
    before = (s[:earlier] - m_old).exp() @ table[:earlier]
    now, factor = (s[:read] - m).exp() @ table[:read], (m_old - m).exp()
    sums = {
        f"{number(old)} × {factor:.3f} + {number(new - old * factor)} = {number(new)}"
        for old, new in zip(before, now, strict=True)
    }
    means = [*(now / now[0])[1:], *(s.softmax(0) @ table)[1:]]
    title = f"m = {m:.2f}: earlier weights (dashed) are multiplied by exp({m_old:.2f} - {m:.2f}) = {factor:.3f}"
    return {title} | sums | {number(mean) for mean in means}


def test_each_block_is_told_with_what_shrinks():
    assert repr(walk()) == (
        "block 1: m = 1.200; l = 1.497, a = [0.897, 0.552]\n"
        "block 2: m stays 1.200; l = 2.390, a = [0.964, 0.775]\n"
        "block 3: m from 1.200 to 2.600, l and a times 0.247; l = 1.589, a = [-0.762, 0.191]\n"
        "a / l = [-0.480, 0.120]; largest difference from softmax(scores) @ values: 0.000000"
    )


@pytest.mark.parametrize(
    ("block_size", "scores"),
    [(2, SCORES), (3, [0.5, 2.9, -0.3, 0.8, 2.6]), (9, SCORES)],
    ids=["as given", "one is dragged", "one block"],
)
def test_the_page_computes_each_block_from_the_scores(block_size, scores):
    for block in range(1, 1 + ceil(len(SCORES) / block_size)):
        assert said_of(block, block_size, scores) <= texts(walk(block_size), block=block, scores=scores)


def test_the_last_block_is_shown_first_and_has_the_result_of_one_softmax():
    assert said_of(3, 2, SCORES) <= texts(walk())
    assert {param["name"]: param.get("bind") for param in walk().spec["params"]}["block"]["max"] == 3


def test_what_cannot_be_drawn_is_refused():
    scores, values = torch.zeros(4), torch.zeros(4, 2)
    for wrong, message in (
        ((torch.zeros(25), values, 2), r"scores must be 1 to 24 numbers \[T\], got shape \[25\]"),
        ((scores, torch.zeros(3, 2), 2), r"values must be \[4, D\], D from 1 to 4, got shape \[3, 2\]"),
        ((scores, torch.zeros(4, 5), 2), r"values must be \[4, D\], D from 1 to 4, got shape \[4, 5\]"),
        ((torch.tensor([1.0, float("inf"), 0, 0]), values, 2), "scores must be finite, got inf"),
        ((scores, values, 0), "block_size must be an integer of at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            walk_online_softmax(*wrong)
