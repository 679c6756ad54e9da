"""The posts' tables as data: each has a title, and its numbers agree with one another as far as they are printed."""

from __future__ import annotations

import pandas as pd
import pytest

from course.posts.data import KINDS, POSTS, Source, beside_post, fact_text, post_facts, post_table, source_of
from roseinfer.profiling.data_sheets import data_sheet

NAMES = sorted(folder.name for folder in POSTS.iterdir())


def test_the_posts_that_the_lessons_need_are_here():
    assert {"000", "001", "002", "003", "004"} <= set(NAMES)


@pytest.mark.parametrize("post", NAMES)
def test_every_table_has_a_title(post: str):
    facts = post_facts(post)
    assert facts["post"] == post
    assert set(facts["tables"]) == {path.stem for path in (POSTS / post).glob("*.csv")}


@pytest.mark.parametrize("post", NAMES)
def test_facts_have_the_keys_of_the_first_post(post: str):
    """A fact that a post does not state is null, not left out."""
    common = {"post", "title", "hardware", "model", "command", "num_requests", "max_batch_size_default", "num_layers"}
    assert common | {"torch", "tables", "sources"} <= post_facts(post).keys()


# Sources


def stated_parts(facts: dict) -> set[str]:
    """Everything that needs a source: facts that are known, and tables. The parts of `claims` have one each."""
    known = {name for name, value in facts.items() if value is not None} - {"post", "tables", "sources", "claims"}
    return known | set(facts["tables"]) | {f"claims.{name}" for name in facts.get("claims", ())}


def columns(post: str) -> set[str]:
    return {f"{table}.{column}" for table in post_facts(post)["tables"] for column in post_table(post, table).columns}


@pytest.mark.parametrize("post", NAMES)
def test_every_fact_and_table_has_a_source(post: str):
    """What a post does not state is null and has none; a column may have one of its own."""
    facts = post_facts(post)
    assert stated_parts(facts) <= facts["sources"].keys() <= stated_parts(facts) | columns(post)
    for name in facts["sources"]:
        source = source_of(facts, name)
        assert source.kind in KINDS and len(source.basis) > 5


def test_a_source_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="kind='guessed' is not one of stated, computed, repository, inferred"):
        Source("guessed", "what fits")


def test_a_fact_shows_whether_the_post_states_it():
    post_000, post_001 = post_facts("000"), post_facts("001")
    assert fact_text(post_000, "torch") == "before 2.9 (inferred)"
    assert fact_text(post_000, "max_batch_size_default") == "8 (seen in its public repository)"
    assert fact_text(post_001, "hardware") == "RTX 4090, Ubuntu 24.04"
    assert fact_text(post_001, "torch") == "not stated"


def test_the_note_beside_a_table_marks_what_was_inferred():
    ours = pd.DataFrame({"name": ["aten::select"], "n": [408], "avg_us": [1.0]})
    note = beside_post("000", "append_after", ours).note
    assert "torch before 2.9 (inferred)" in note and "2.6" not in note


# 001


def test_what_the_post_sums_up_follows_from_its_tables(phases: pd.DataFrame):
    facts, speed = post_facts("001"), post_table("001", "throughput").set_index("batch")["tokens_per_second"]
    for speedup in facts["speedups"]:
        assert round(speed[speedup["to"]] / speed[speedup["from"]], 2) == pytest.approx(speedup["times"], abs=0.01)
    cat = facts["cat"]
    assert round(cat["total_ms"] / facts["num_decode_steps"], 2) == cat["ms_per_step"]
    labelled = phases[["gather_ms", "forward_ms", "write_ms"]].sum(axis=1)[8]
    assert round(phases.loc[8, "gather_ms"] / labelled, 3) == facts["label_shares"]["gather"]
    assert round(phases.loc[8, "write_ms"] / labelled, 2) == facts["label_shares"]["append"]


@pytest.fixture
def phases() -> pd.DataFrame:
    return post_table("001", "phases").set_index("batch")


def test_shares_follow_from_the_phases(phases: pd.DataFrame):
    labelled = phases[["gather_ms", "forward_ms", "write_ms"]].sum(axis=1)
    assert list((phases["forward_ms"] / labelled).round(3)) == list(phases["forward_share"])
    steps = post_facts("001")["num_decode_steps"]
    assert (labelled * steps).to_numpy() == pytest.approx(phases["total_ms"].to_numpy(), abs=0.6)


def test_batches_are_those_of_the_facts(phases: pd.DataFrame):
    facts = post_facts("001")
    assert list(phases.index) == list(post_table("001", "throughput")["batch"]) == facts["batch_sizes"]
    assert facts["num_decode_steps"] == facts["num_steps"] - 1  # the first step is the prefill


def test_step_times_follow_from_the_throughput(phases: pd.DataFrame):
    steps = post_table("001", "step_time").set_index("engine")
    measured = post_table("001", "throughput").set_index("batch").loc[8]
    assert list(steps["tokens_per_second"]) == [round(measured["tokens_per_second"]), measured["hf_tokens_per_second"]]
    assert list((8 / steps["tokens_per_second"] * 1000).round(1)) == list(steps["ms_per_step"])
    labelled = phases.loc[8, "total_ms"] / post_facts("001")["num_decode_steps"]
    assert round(labelled, 1) == steps.loc["mini-infer", "labelled_ms"]


def test_the_step_outlasts_its_labels_at_every_batch(phases: pd.DataFrame):
    throughput = post_table("001", "throughput").set_index("batch")["tokens_per_second"]
    step_ms = phases.index / throughput * 1000
    labelled = phases["total_ms"] / post_facts("001")["num_decode_steps"]
    assert (step_ms > labelled).all()


def test_the_residual_is_the_step_without_its_labels():
    residual = post_table("001", "residual").set_index("source")
    step = post_table("001", "step_time").set_index("engine")
    total = residual.loc["total", "ms_high"]
    assert total == pytest.approx(step.loc["mini-infer", "ms_per_step"] - step.loc["mini-infer", "labelled_ms"])
    parts = residual.drop("total")
    assert parts["ms_low"].sum() < total
    assert round(parts["ms_high"].sum(), 1) == total
    # The gather is inside the labels as well: the post counts it twice.
    assert parts.loc["gather_batch_kv", "ms_high"] == round(post_table("001", "phases")["gather_ms"].iloc[-1], 2)
    gap = step.loc["mini-infer", "ms_per_step"] - step.loc["HF", "ms_per_step"]
    assert f"{gap:.1f} ms" in residual.loc["total", "note"]


# 002


def test_the_load_is_a_rate_for_a_time():
    facts = post_facts("002")
    rate, seconds = facts["requests_per_second"], facts["seconds"]
    assert f" -X {rate} " in facts["command"] and facts["command"].endswith(f" -T {seconds}")
    assert facts["num_requests"] == rate * seconds


def test_a_block_table_holds_the_longest_sequence():
    facts = post_facts("002")
    assert facts["block_table_columns"] * facts["block_size"] == facts["seq_length"] == facts["max_generate_length"]


# 004


@pytest.mark.parametrize("column", ["before_p50", "before_mean", "after_p50", "after_mean"])
def test_latency_is_the_first_token_and_the_others(column: str):
    summary = post_table("004", "summary").set_index("metric")
    others = post_facts("004")["max_new_tokens"] - 1
    latency = summary.loc["TTFT", column] + others * summary.loc["TPOT", column]
    assert summary.loc["Latency", column] == pytest.approx(latency, abs=others * 0.005 + 0.01)


def test_the_command_says_what_the_facts_say():
    facts = post_facts("004")
    for flag in ("num-requests", "max-new-tokens", "max-batch-size", "warmup-runs"):
        assert f"--{flag} {facts[flag.replace('-', '_')]} " in facts["command"]
    assert f"--repeat-runs {facts['measured_runs']} " in facts["command"]


def test_a_data_sheet_names_its_source_and_an_unknown_gpu_is_refused():
    for gpu in ("RTX 4090", "H100 SXM"):
        sheet = data_sheet(gpu)
        assert sheet["source"] and sheet["read_bytes_per_s"] > 1e12 - 1e11 and sheet["num_sms"] > 100
    with pytest.raises(ValueError, match="gpu='RTX 5090' is not in .*gpus.json, allowed: RTX 4090, H100 SXM"):
        data_sheet("RTX 5090")
