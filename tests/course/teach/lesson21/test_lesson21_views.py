"""Lesson 21's picture, tables and stage with a layer of a learner's."""

from __future__ import annotations

import pytest

from course.display.board import VEGA
from course.teach.lesson21 import reduce_times, split_picture
from course.teach.lesson21.rank_sizes import split_sizes
from roseinfer.models import load_model
from stages import TensorParallel


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny")


def test_the_picture_ends_with_the_product_on_both_devices():
    grid = split_picture.draw_split()
    y = split_picture.relu(split_picture.X @ split_picture.A) @ split_picture.B
    assert len(grid.lengths) == 1 and grid.lengths[""] == len(split_picture.STEPS)
    last = grid.texts(len(split_picture.STEPS) - 1)
    for number in y.flatten():
        assert last.count(str(number)) >= 2
    assert "partial y" in grid.texts(3) and "partial y" not in last
    bundle, _ = grid._repr_mimebundle_()
    assert {"text/plain", VEGA, "image/png"} <= set(bundle)


def test_partial_sums_add_up_in_the_picture():
    x, a, b = split_picture.X, split_picture.A, split_picture.B
    parts = [split_picture.relu(x @ a[:, part]) @ b[part] for part in split_picture.halves()]
    assert (sum(parts) == split_picture.relu(x @ a) @ b).all() and not (parts[0] == parts[1]).all()


def test_sizes_of_ranks_halve_what_is_split_and_keep_what_is_whole():
    rows = split_sizes("random:llama-7b", (1, 2)).df
    whole, half = rows.iloc[0], rows.iloc[1]
    assert (whole["query heads"], half["query heads"]) == (32, 16)
    assert half["all-reduces per step"] == 64 and whole["all-reduces per step"] == 0
    assert whole["weights of a rank, GB"] / 2 < half["weights of a rank, GB"] < whole["weights of a rank, GB"]
    assert half["KB per token and all-reduce"] == 4096 * 2 / 1000
    with pytest.raises(ValueError, match="tensor_parallel_size=3 must divide"):
        split_sizes("random:llama-7b", (3,))


def test_a_ring_takes_its_messages_one_after_another():
    assert reduce_times.ring_seconds(1000, 2, 100.0, 0.5) == 2 * (500 / 100 + 0.5)
    assert reduce_times.ring_seconds(1000, 4, 100.0, 0.0) == pytest.approx(2 * 3 / 4 * 10)
    assert reduce_times.ring_seconds(1000, 1, 100.0, 0.5) == 0


def test_one_shot_waits_once_and_receives_every_other_tensor():
    assert reduce_times.one_shot_seconds(1000, 8, 100.0, 0.5) == 0.5 + 7 * 10
    assert reduce_times.one_shot_seconds(1000, 1, 100.0, 0.5) == 0


def test_an_unknown_link_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="link='USB' is not in .* allowed: NVLink 4, PCIe 5.0 x16"):
        reduce_times.link_of("USB")


@pytest.mark.slow
def test_the_share_of_all_reduces_counts_two_per_layer(tiny):
    rows = reduce_times.reduce_share(TensorParallel, tiny, (2,)).df
    assert list(rows["all-reduces per step"]) == [2 * tiny.config.num_layers]
    assert (rows["share, %"] > 0).all() and (rows["share, %"] < 100).all()
