"""labels: no text lies on another, and every point is named."""

from __future__ import annotations

import pandas as pd

from roseinfer.display.labels import Label, budget_labels, groups, labels


def test_points_far_from_each_other_have_a_label_each():
    assert labels([(10, 10), (100, 10)], ["a", "b"], 200) == [Label("a"), Label("b")]


def test_points_too_near_share_one_label_and_none_is_left_out():
    places = [(10, 10), (30, 12), (50, 14), (150, 90)]
    assert groups(places) == [[0, 1, 2], [3]]  # the first and the third are near by way of the second
    assert [label.text for label in labels(places, list("abcd"), 200)] == ["", "", "a, b, c", "d"]


def test_a_group_in_the_right_half_has_its_label_on_its_left():
    found = labels([(150, 10), (160, 15)], ["a", "b"], 200)
    assert found == [Label("a, b", -8, 0, "right"), Label("")]


def test_a_label_lies_off_its_curve():
    corner = labels([(0, 0), (100, 100), (0, 200)], ["a", "b", "c"], 200, is_curve=True)[1]
    assert corner.align == "left" and corner.dx > 0  # the curve comes from the left and goes back there


def test_a_flat_group_of_a_curve_has_its_label_above():
    found = labels([(150, 10), (170, 12), (190, 11)], ["a", "b", "c"], 200, is_curve=True)
    assert [label.text for label in found] == ["", "a, b, c", ""] and found[1].dy < 0 and found[1].align == "center"


def test_a_crowd_of_budgets_is_named_by_its_ends():
    frame = pd.DataFrame({"budget": [16, 32, 64, 128], "x": [1.0, 9.9, 10.0, 10.0], "y": [1.0, 5.0, 5.0, 5.1]})
    told = budget_labels(frame, "x", "y", (200, 200), 1.2)
    assert [text for text in told["label"] if text] == ["16", "32, ..., 128"]


def test_a_flat_group_with_a_peak_beside_it_has_its_label_below():
    found = labels([(60, 50), (100, 80), (115, 140), (125, 82)], ["32", "64", "128", "256"], 200, is_curve=True)
    assert [label.text for label in found] == ["32", "", "128", "64, 256"] and found[3].dy > 0
