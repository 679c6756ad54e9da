"""Lesson 08: the seam's picture has the right shapes."""

from __future__ import annotations

import pytest
from lesson08_solutions import Doubling

from course.teach import draw_seam
from stages import NaiveCat


@pytest.mark.parametrize("stage_class", [NaiveCat, Doubling], ids=lambda cls: cls.__name__)
def test_the_seam_is_drawn_from_a_real_run(stage_class, grouped):
    assert repr(draw_seam(stage_class, grouped, [3, 7])).splitlines()[1:] == [
        "write_prompt × 4: gets seq, layer, k and v [7, 2, 8] = [N, H_kv, D]; returns nothing",
        "build × 1: gets 2 sequences; returns step, which the model calls once per layer",
        "step × 2: gets layer, q [2, 4, 8] = [B, H, D], k and v [2, 2, 8] = [B, H_kv, D]; "
        "returns [2, 4, 8] = [B, H, D]",
        "append × 1: gets 2 sequences, and the step, which kept k and v; returns nothing",
    ]
