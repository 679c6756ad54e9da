"""The walk of rounding: its counts against torch, and the page's own numbers after a move of the outlier."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch
import vl_convert

from course.teach import walk_rounding
from course.teach.lesson12.text_price import rounded

GROUPS = (64, 32, 16)


def row_with_outlier(times: float, length: int = 200) -> torch.Tensor:
    """Values from -1 to 1, the outlier at place 70."""
    row = torch.linspace(-1, 1, length, dtype=torch.float64).roll(37)[torch.arange(length) * 77 % length]
    row[70] = -times
    return row


def facts(row: torch.Tensor, group: int) -> tuple[int, str]:
    """Values that round to 0, and the mean relative error, with the lesson's own rounding."""
    row = torch.tensor([float(f"{value:.4g}") for value in row.tolist()], dtype=torch.float64)
    got, there = rounded(row[None], group)[0], row != 0
    error = ((row - got).abs() / row.abs())[there].mean()
    return int((there & (got == 0)).sum()), f"{float(error):.1%}"


def test_each_setting_is_told_with_its_counts():
    row = row_with_outlier(40)
    head, *lines = repr(walk_rounding(row, groups=GROUPS)).splitlines()
    assert head == "200 values, the outlier 40.0 times the largest other one"
    names = ["one scale for the row", *(f"a scale for {group}" for group in GROUPS)]
    scale_bytes = ["1.0200", "1.0800", "1.1400", "1.2600"]  # 1, 4, 7 and 13 scales of 4 bytes for 200 values
    for name, group, size, line in zip(names, (200, *GROUPS), scale_bytes, lines, strict=True):
        zeros, error = facts(row, group)
        assert line == f"{name}: {zeros} of 200 round to 0, mean relative error {error}, {size} bytes per value"


def texts(page, **values: float) -> list[str]:
    """Texts of the chart where a reader has set these values."""
    params = [one | {"value": values.get(one["name"], one["value"])} for one in page.spec["params"]]
    svg = vl_convert.vegalite_to_svg(page.spec | {"params": params})
    return ["".join(one.itertext()) for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.0, 7.5, 80.0])
def test_the_page_counts_what_a_moved_outlier_rounds_to_0(times):
    page = walk_rounding(row_with_outlier(40), groups=GROUPS)
    counted = [facts(row_with_outlier(times), group) for group in (200, *GROUPS)]
    said = [f"{zeros} round to 0, mean relative error {error}" for zeros, error in counted]
    assert [text for text in texts(page, times=times) if "round to 0, mean" in text] == said


def test_values_that_are_0_are_not_lost():
    row = torch.zeros(32)
    row[:2] = torch.tensor([1.0, 0.001])
    first, line, _ = repr(walk_rounding(row, groups=[16])).splitlines()
    assert first.endswith("outlier 1000.0 times the largest other one") and "1 of 32 round to 0" in line


def test_a_reader_chooses_among_the_groups():
    binds = {one["name"]: one["bind"] for one in walk_rounding(row_with_outlier(40)).spec["params"]}
    assert binds["group"]["options"] == [200, *GROUPS] and binds["times"]["max"] == 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"row": torch.ones(15)}, r"row must be 16 to 256 values \[K\], got shape \[15\]"),
        ({"row": torch.ones(4, 64)}, r"row must be 16 to 256 values \[K\], got shape \[4, 64\]"),
        ({"row": torch.tensor([float("nan"), *[1.0] * 63])}, "row must be finite, got nan"),
        ({"row": torch.eye(64)[0]}, "row must have at least two values that are not 0"),
        ({"groups": [64]}, "groups must be an integer from 2 to 63, got 64"),
        ({"groups": [16, 16]}, r"groups must be a list with each value once, got \[16, 16\]"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        walk_rounding(**({"row": torch.arange(64.0), "groups": [32, 16]} | arguments))
