"""Lesson 06: rows and builds are counted as the stages really make them."""

from __future__ import annotations

import pytest

from course.teach import compare_builds, table_steps
from roseinfer.generate import begin, decode_step
from roseinfer.sequence import SamplingParams
from stages import BlockTable, BlockTableCache


@pytest.mark.parametrize("stage_class", [BlockTable, BlockTableCache], ids=lambda cls: cls.name)
def test_rows_without_a_model_are_those_of_real_steps(small, stage_class):
    lengths, steps = [5, 14, 16], 12
    stage = stage_class(small, num_blocks=12, block_size=8)
    seqs = begin(stage, [[3] * n for n in lengths], SamplingParams(max_tokens=steps + 2, ignore_eos=True))
    padded_row, real = stage.padded_row, []

    def counted(blocks):
        real[-1] += 1
        return padded_row(blocks)

    stage.padded_row = counted
    for _ in range(steps):
        real.append(0)
        decode_step(stage, seqs)
    assert table_steps(stage_class, small, lengths, steps, block_size=8) == real


def test_rows_of_the_cache_come_at_the_edges(small):
    layers = small.config.num_layers
    together = table_steps(BlockTableCache, small, [10] * 4, steps=128)
    staggered = table_steps(BlockTableCache, small, [10, 20, 30, 40], steps=128)
    assert together[0] == together[54] == together[118] == 4 * layers
    assert sum(together) == sum(staggered) == 4 * layers * 3
    assert max(staggered[1:]) == layers


def test_a_run_beyond_the_models_positions_is_refused(small):
    with pytest.raises(ValueError, match="max_model_len=192, got 193 tokens"):
        table_steps(BlockTable, small, [100], steps=93)


def test_builds_beside_each_other(small):
    df = compare_builds([BlockTable, BlockTableCache], small, batch_sizes=[3], steps=2).df
    assert df["step"].tolist() == ["away from an edge"] * 2 + ["at an edge"] * 2
    layers = small.config.num_layers
    assert df["rows built"].tolist() == [3 * layers, 0, 3 * layers, 3 * layers]
    assert df["copies"].tolist() == [layers, 0, layers, 0] and df["stacks"].tolist() == [0, 1, 0, 1]
    assert set(df["table bytes"]) == {layers * 3 * 3 * 4}  # 192 positions are 3 blocks
    with pytest.raises(ValueError, match="steps must be 1 to 60"):
        compare_builds([BlockTable], small, batch_sizes=[3], steps=61)
