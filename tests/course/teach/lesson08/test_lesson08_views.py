"""Lesson 08: the seam's table has the right shapes."""

from __future__ import annotations

import pytest
from lesson08_solutions import Doubling

from course.teach import draw_seam
from stages import NaiveCat


@pytest.mark.parametrize("stage_class", [NaiveCat, Doubling], ids=lambda cls: cls.__name__)
def test_the_seam_is_that_of_a_real_run(stage_class, grouped):
    rows = draw_seam(stage_class, grouped, [3, 7]).df.to_numpy().tolist()
    assert rows == [
        ["write_prompt", 4, "seq, layer, k and v [7, 2, 8] = [N, H_kv, D]", "nothing", "written"],
        ["build", 1, "2 sequences", "step, which the model calls once per layer", ""],
        [
            "step",
            2,
            "layer, q [2, 4, 8] = [B, H, D], k and v [2, 2, 8] = [B, H_kv, D]",
            "[2, 4, 8] = [B, H, D]",
            "read",
        ],
        ["append", 1, "2 sequences, and the step, which kept k and v", "nothing", "written"],
    ]
