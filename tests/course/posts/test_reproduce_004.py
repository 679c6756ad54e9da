"""Post 004 reproduced: rows counted for its sizes and for the run that was timed; both stages in turn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import require_whole, section
from small_posts import setting

from course.posts.data import post_table
from course.posts.post004 import tables
from course.posts.post004.run import AFTER, BEFORE, arguments, pair
from course.posts.posted_command import parsed
from roseinfer.engine.step import StepRecord
from stages import BlockTable, BlockTableCache, TritonPaged

pytestmark = pytest.mark.slow

POST = "004"


@pytest.fixture(scope="module")
def measured(reproduced):
    return reproduced.parts["measure"]


def test_the_report_is_whole(report):
    explained = {"Measured runs", "completion tokens", "rows built in the run that was timed, after"}
    require_whole(report, explained)


def test_rows_of_the_posts_run(report, measured):
    """511 steps of 64 sequences in 12 layers; cached tokens fill up a block at 64, 128, ... 448."""
    facts = {fact.what: fact for fact in section(report, "Rows built by each step").facts}
    assert facts["rows on the step where all sequences cross an edge, after"].here == 12 * 64 == 768
    assert facts["rows built, before, all steps"].here == 511 * 768
    assert facts["rows built, after, all steps"].here == 8 * 768
    assert facts["steps that build no row, after"].here == 511 - 8
    rebuilt = [step for step, rows in enumerate(measured.post_rows[AFTER]) if rows]
    assert rebuilt == [0, 63, 127, 191, 255, 319, 383, 447]
    post, here = section(report, "Rows built by each step").grids
    assert list(post.rows) == [(0, 0, 503), (768, 511, 8)]
    assert list(here.rows) == [(0, 0, 69), (128, 71, 2)]  # 2 layers x 64


def test_rows_of_the_run_that_was_timed_are_explained_by_its_sizes(report, measured):
    fact = section(report, "Rows built by each step").facts[-1]
    assert (fact.here, fact.verdict) == (
        2 * 2 * 64,
        "explained",
    ) and fact.why == "2 layers x 64 sequences, edges crossed in 72 tokens: 1"
    assert sum(measured.rows) == fact.here and measured.rows[63] == 128


def test_a_row_too_many_is_different(measured):
    forged = replace(measured, rows=[*measured.rows[:-1], 1])
    assert tables.rebuilds(forged)["facts"][-1].verdict == "different"


def test_the_summary_has_all_of_the_posts_figures(report, measured):
    summary = section(report, "The summary")
    theirs = post_table("004", "summary").set_index("metric")
    times = {time.what: time for time in summary.times}
    assert len(times) == 4 * len(theirs)
    for metric, row in theirs.iterrows():
        for column in theirs.columns.drop("unit"):
            when, kind = column.split("_")
            assert times[f"{metric}, {when}, {kind}"].post == row[column]
    assert times["TPOT, after, p50"].floor < times["TPOT, after, p50"].here
    assert {len(runs) for runs in measured.runs.values()} == {1}
    before, after = (measured.runs[when][0] for when in (BEFORE, AFTER))
    assert [seq.output_ids for seq in before.seqs] == [seq.output_ids for seq in after.seqs]
    assert "--stage s05" in summary.markdown and "--stage s06" in summary.markdown


def test_a_single_run_shows_no_change(report):
    (changes,) = section(report, "The summary").grids
    assert {tuple(row[2:]) for row in changes.rows} == {(None, None, "one run")}
    assert [row[1] for row in changes.rows][:2] == ["-2.3%", "-2.2%"]
    assert any("a single run shows nothing" in part.what for part in report.not_run)


def test_several_runs_have_a_spread_and_a_verdict(measured):
    run = measured.runs[AFTER][0]
    twice = {step: StepRecord(*(2 * stamp for stamp in step[:4]), *step[4:]) for step in run.steps}
    times = [replace(own, steps=[twice[step] for step in own.steps]) for own in run.times]
    slower = replace(run, times=times, steps=list(twice.values()))
    runs = {BEFORE: [slower, slower], AFTER: [run, run]}
    several = tables.summary(replace(measured, runs=runs))["changes"]
    assert several[0][2:] == ["-50.0%", "0.0%", "lower in 2 of 2 runs"]


def test_what_was_not_run_says_what_it_needs(report):
    needs = {part.what: part.needs for part in report.not_run}
    assert needs["512 tokens a request"] == "a model with 513 positions; random:tiny-llama has 256"
    assert any("interpreter its times say nothing" in text for text in needs.values())


def test_on_a_gpu_both_have_the_kernel_and_only_one_the_cache(monkeypatch):
    monkeypatch.setattr(TritonPaged, "why_untimed", classmethod(lambda cls, device: None))
    on_gpu = setting("004", "cuda", quick=False, model=None)
    stages = pair(on_gpu)
    assert stages[AFTER] is TritonPaged and stages[BEFORE].attention is TritonPaged.attention
    assert issubclass(stages[BEFORE], BlockTable) and not issubclass(stages[BEFORE], BlockTableCache)
    assert stages[BEFORE].name == "s05_block_table, kernel of s07_triton_paged"
    args = parsed(arguments(on_gpu))
    assert (args.num_requests, args.max_new_tokens, args.max_batch_size) == (64, 512, 64)
    assert (args.warmup_runs, args.repeat_runs, args.device) == (1, 3, "cuda")
