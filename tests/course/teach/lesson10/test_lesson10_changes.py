"""Lesson 10: the stages between stage 09 and stage 10 are right, and all of them are timed."""

from __future__ import annotations

import pytest

from course.teach import draw_changes, rows_in_post_004, time_changes
from course.teach.exercises.stage_checks import require_tokens
from course.teach.lesson10.five_changes import five_changes
from course.teach.lesson10.row_counts import host_part
from roseinfer.models import load_model
from stages import BlockTableCache, NumbaPaged, OneTable

NAMES = ["s09_numba_paged", "+ one table", "+ write first", "+ head-major", "+ stage 10's loops"]


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", device="cpu")


@pytest.mark.slow
def test_each_stage_on_the_way_chooses_the_right_tokens(model):
    stages = five_changes(NumbaPaged, OneTable)
    assert [stage.name for stage in stages] == [*NAMES, "s10_one_table"]
    for stage in stages:
        require_tokens(stage, model)


def test_each_stage_has_what_its_name_says(model):
    _, table, write, layout, loops, _ = (
        stage(model, num_blocks=4, block_size=16) for stage in five_changes(NumbaPaged, OneTable)
    )
    heads, dim = model.config.num_kv_heads, model.config.head_dim
    assert all(stage.tables.num_tables == 1 for stage in (table, write, layout, loops))
    assert type(write).append is not type(table).append is NumbaPaged.append
    assert write.k_cache.shape[2:] == (16, heads, dim) and layout.v_cache.shape[2:] == (heads, 16, dim)


@pytest.mark.slow
def test_times_are_of_all_six_and_the_picture_names_them(model):
    times = time_changes(NumbaPaged, OneTable, model, batch_size=1, prompt_len=3, steps=4)
    assert list(times) == [*NAMES, "+ one buffer, stage 10"] and {len(own) for own in times.values()} == {4}
    assert repr(draw_changes(times)).startswith("decode step of s09_numba_paged, and with one more change each: + one")


def test_rows_of_the_posts_run():
    kept, unkept = rows_in_post_004(BlockTableCache), rows_in_post_004(OneTable)
    assert (len(kept), sum(kept), max(kept)) == (511, 6144, 768) and set(unkept) == {64}
    host_part(OneTable, 2)()
