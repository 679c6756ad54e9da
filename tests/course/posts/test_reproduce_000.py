"""Post 000 reproduced: its counts judged op by op, and a count that nothing explains is called different."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from made_up import require_whole, section, section_of
from small_posts import setting

from course.posts.data import post_facts, post_table
from course.posts.post000 import tables
from course.posts.post000.counts import DecodeBatch
from course.posts.post000.run import AFTER, BEFORE, arguments
from course.posts.post000.tables import APPEND, SPANS, ops_table
from course.posts.posted_command import arguments_here, command_line, parsed
from roseinfer.profiling.slice_rule import torch_version

pytestmark = pytest.mark.slow

POST = "000"
TITLES = {
    "gather_after": "The gather, preallocated",
    "append_before": "The append, slices cut for each sequence",
    "append_after": "The append, one select a layer",
}
STABLE = {"aten::copy_", "aten::select", "aten::zeros", "aten::zeros_like", "aten::zero_", "aten::empty"}


@pytest.fixture(scope="module")
def measured(reproduced):
    return reproduced.parts["measure"]


def facts_of(facts) -> dict:
    return {fact.what: fact for fact in facts}


def test_the_report_is_whole(report):
    explained = {"Completion tokens", "Total tokens", "aten::as_strided", "aten::fill_", "aten::slice"}
    require_whole(report, explained)


@pytest.mark.parametrize("table", SPANS)
def test_every_op_of_the_posts_table_is_judged(report, table):
    ops = section(report, TITLES[table])
    posted = post_table("000", table).set_index("name")
    facts = facts_of(ops.facts)
    assert {op: facts[op].post for op in posted.index} == posted["n"].to_dict()
    assert {op for op in facts if facts[op].verdict == "equal"} >= STABLE & set(posted.index)
    if torch_version() >= (2, 9):
        assert facts["aten::slice"].verdict == "explained" and "starts no slice" in facts["aten::slice"].why
    assert {time.what: time.post for time in ops.times} == {
        f"{op}, {what}": row[column]
        for op, row in posted.iterrows()
        for what, column in (("all calls", "total_ms"), ("a call", "avg_us"))
    }


def test_the_gather_has_no_cat_left_as_the_post_says(report):
    fact = facts_of(section(report, TITLES["gather_after"]).facts)["aten::cat"]
    assert (fact.post, fact.here, fact.verdict) == (0, 0, "equal") and fact.source.is_stated


def test_the_posts_own_counts_follow_from_one_rule(report):
    last = report.sections[-1]
    assert len(last.facts) == sum(len(post_table("000", table)) for table in SPANS)
    assert {fact.verdict for fact in last.facts} == {"equal"}
    text = " ".join(last.markdown.split())
    assert "torch before 2.9 (inferred)" in text and "8 (seen in its public repository)" in text
    assert "12 x 8 x 16 is as many" in text and "960 slices, not 1,128" in text and "would take 384" in text


def test_the_commands_counts(report):
    facts = facts_of(report.sections[0].facts)
    assert {what: (fact.post, fact.here) for what, fact in facts.items()} == {
        "Requests": (16, 16),
        "Prompt tokens": (16, 16),
        "Completion tokens": (256, 128),
        "Total tokens": (272, 144),
    }
    assert facts["Completion tokens"].why == "8 tokens each were asked for"
    decode = {time.what: time for time in report.sections[0].times}["Elapsed (decode/run), before"]
    assert decode.post == 0.443207 and decode.unit == "s" and 0 < decode.floor < decode.here


def test_the_overview_of_a_step(report):
    times = section(report, "Where a step goes").times
    rows = post_table("000", "spans")
    assert [time.post for time in times] == [ms for row in rows.itertuples() for ms in (row.total_ms, row.avg_ms)]
    totals = {time.what.removeprefix("roseinfer."): time for time in times}
    each, whole = (totals[f"decode_step_sessions.total, host, {what}"] for what in ("each", "all"))
    assert whole.here == pytest.approx(3 * each.here, rel=1e-3) and whole.floor == pytest.approx(3 * each.floor)
    assert totals["decode_step_sessions.total, device, each"].floor is None  # what no label inside covers
    assert totals["model.forward, device, each"].here is None and totals["model.forward, host, each"].floor is not None


def test_on_a_gpu_the_gaps_of_the_device_are_shown(measured, monkeypatch):
    """With the trace of a CPU: three steps, and no work on a device."""
    monkeypatch.setattr(type(measured), "floor_seconds", lambda self, run: 1.0)
    on_gpu = replace(measured, model=SimpleNamespace(device=torch.device("cuda")))
    assert len(section_of("000", "Where a step goes", tables.spans(measured)).grids) == 1
    gaps = section_of("000", "Where a step goes", tables.spans(on_gpu)).grids[1]
    assert gaps.title.startswith("The gaps of the device")
    assert [row[gaps.columns.index("launches")] for row in gaps.rows] == [0, 0, 0]


def test_an_op_that_the_posts_table_lacks_is_marked(measured, monkeypatch):
    """The gather's ops, beside the post's table of the append, which has four."""
    monkeypatch.setitem(tables.SPANS, "append_before", (tables.GATHER, "gather_ops"))
    facts = facts_of(ops_table(measured, "append_before", BEFORE)["facts"])
    marked = {op for op, fact in facts.items() if fact.source and not fact.source.is_stated}
    assert marked == facts.keys() - set(post_table("000", "append_before")["name"]) - {"aten::cat"}
    assert facts["aten::zeros"].post == 0 and facts["aten::zeros"].source.kind == "computed"


def test_a_single_run_is_no_race_and_several_are(report, measured):
    (race,) = report.sections[0].grids
    assert "one run" in race.title and "the median changes" not in race.title
    assert [row[1:2] + row[3:] for row in race.rows] == [(1, None, None)] * 2
    several = tables.race(replace(measured, raced={stage: 3 * runs for stage, runs in measured.raced.items()}))
    assert several["change"].startswith("the median changes by ") and {row[1] for row in several["race"].rows} == {3}


def test_a_count_that_nothing_explains_is_different(measured):
    """The append of stage 02 passed off as that of stage 03."""
    forged = replace(measured, profiled=measured.profiled | {AFTER: measured.profiled[BEFORE]})
    facts = facts_of(ops_table(forged, "append_after", AFTER)["facts"])
    assert facts["aten::select"].verdict == "different" and facts["aten::select"].here == 576
    assert facts["aten::copy_"].verdict == "equal"


def test_another_models_sizes_are_the_explanation():
    batch = DecodeBatch(2, 2, 8, 64, [3] * 8, on_cpu=True)
    assert batch.append_ops(select_first=True)["aten::copy_"] == 2 * 8 * 2
    assert tables.differences(batch, APPEND)["aten::copy_"] == "2 layers, not 12"


def test_what_was_not_run_says_what_it_needs(report):
    needs = {part.what: part.needs for part in report.not_run}
    gaps = "the device rows of the span table, and the gaps of the device that the post's picture shows"
    assert needs[gaps] == "an NVIDIA GPU; the post does not name its own"
    assert "torch before 2.9, which the post's slice counts belong to" in needs
    assert "what the change gains: a single run shows nothing" in needs


def test_the_posts_command_with_changes():
    posted = post_facts("000")["command"]
    unchanged = arguments_here("000", {})
    assert posted.endswith('--prompt "Hello" ' + command_line(unchanged).split("--prompt Hello ")[1])
    changed = arguments_here("000", {"--device": "cpu", "--top-k": None, "--profile": None, "--stage": "s02"})
    assert "--top-k" not in changed and "40" not in changed and "--profile" not in changed
    assert changed[changed.index("--device") + 1] == "cpu" and changed[-2:] == ["--stage", "s02"]
    args = parsed(arguments(setting(quick=False, model=None)))
    assert (args.num_requests, args.max_new_tokens, args.max_batch_size, args.top_k) == (16, 16, 8, 40)
    assert args.do_sample and args.profile and args.mode == "online" and args.hf_model_id == "random:gpt2"
