"""What lessons draw and walk through: the exact text of each, and the frames behind a slider."""

from __future__ import annotations

import weakref

import pytest

from course import teach
from roseinfer.display.chart import PAGE_WIDTH
from roseinfer.generate import begin
from roseinfer.models import load_tokenizer
from roseinfer.sequence import SamplingParams
from stages import LADDER, NaiveCat, PreallocGather


def test_walk_tokens_counts_what_each_step_computes():
    tokenizer = load_tokenizer("tiny")
    walk = teach.walk_tokens(tokenizer, [5, 6, 7], [8, 9, 10, 11])
    assert repr(walk) == "4 frames: 18 tokens computed without a cache, 6 with one"
    assert "prefill" in walk.texts(0) and "decode step 3" in walk.texts(3)
    assert "no cache, 18 tokens computed so far" in walk.texts(3)
    assert "KV cache, 6 tokens computed so far" in walk.texts(3)


def test_any_token_can_be_shown():
    tokenizer = load_tokenizer("tiny")
    token_ids = [tokenizer.encode(text).ids[0] for text in ("<", ",", '"', "\n")]
    walk = teach.walk_tokens(tokenizer, token_ids, token_ids)
    assert [text for text in walk.texts(0) if text in '<,"⏎'] == ["<", ",", '"', "⏎", "<"] * 2


def test_a_walk_needs_frames():
    with pytest.raises(ValueError, match="at least one frame"):
        teach.walk_tokens(load_tokenizer("tiny"), [1], [])


def test_pictures_say_what_they_show(small):
    stage = NaiveCat(small, num_blocks=8)
    seqs = begin(stage, [[1] * 5, [2] * 70], SamplingParams())
    text = repr(teach.draw_gather(stage, seqs))
    assert "[5, 70] cached tokens" in text and "2 x 70: 75 tokens of content and 65 of padding" in text
    assert "cut out 6 times" in repr(teach.draw_append(6, 9))
    assert teach.draw_append(6, 9).png.startswith(b"\x89PNG")


def test_a_chart_fits_the_page_and_says_what_it_shows():
    rows = teach.draw_rows_built({"together": [4, 0, 4], "apart": [4, 2, 2]})
    assert "apart: 8 rows in 3 steps, 4 of them in the first; after it at most 2 in a step" in repr(rows)
    assert "together: 8 rows in 3 steps" in repr(rows) and "; steps without a row: 1." in repr(rows)
    _, metadata = rows._repr_mimebundle_()
    assert metadata["image/png"]["width"] <= PAGE_WIDTH and metadata["image/png"]["alt"] == repr(rows)
    with pytest.raises(ValueError, match="runs must be of equal length"):
        teach.draw_rows_built({"together": [1], "apart": [1, 2]})


def test_the_map_reads_the_stages_own_words():
    table = teach.course_map(LADDER)
    assert list(table.df["stage"]) == [cls.name for cls in LADDER]
    assert "one zeroed batch tensor a layer" in repr(table)


def test_post_tables_lie_beside_ours():
    import pandas as pd

    ours = pd.DataFrame({"name": ["aten::select", "aten::cat"], "n": [408, 3], "avg_us": [1.0, 2.0]})
    both = teach.beside_post("000", "append_after", ours).df.set_index("name")
    assert both.loc["aten::select", ["n_post", "n_here"]].tolist() == [408, 408]
    assert both.loc["aten::cat", ["n_post", "n_here"]].tolist() == [0, 3]
    only = teach.beside_post("000", "append_after", ours, only=["aten::select"])
    assert only.df["name"].tolist() == ["aten::select"]
    with pytest.raises(ValueError, match="append_before"):
        teach.post_table("000", "nothing")
    with pytest.raises(ValueError, match="000"):
        teach.post_facts("999")


@pytest.mark.slow
def test_prove_finds_the_first_wrong_token(small):
    class OffByOne(NaiveCat):
        def positions(self, seqs):
            return [seq.num_cached_tokens - 1 for seq in seqs]

    right = teach.prove(NaiveCat, small, prompt_lens=(3, 9), max_tokens=6)
    assert right.df[["reference", "transformers"]].eq("equal").all(axis=None)
    assert "16 of 16 blocks free at the end" in repr(right)
    wrong = teach.prove(OffByOne, small, prompt_lens=(3, 9), max_tokens=6).df
    assert wrong["reference"].str.startswith("differs from token").any()
    assert (wrong["reference"] == wrong["transformers"]).all()


def test_compare_shapes_counts_exactly(small):
    table = teach.compare_shapes([NaiveCat, PreallocGather], small, {"equal": [8] * 3, "mixed": [2, 2, 20]}, steps=2)
    df = table.df.set_index(["batch", "stage"])
    assert df.loc[("equal", "s02_prealloc_gather"), "cats"] < df.loc[("equal", "s01_naive_cat"), "cats"]
    assert df.loc[("equal", "s01_naive_cat"), "cached tokens"] == df.loc[("mixed", "s01_naive_cat"), "cached tokens"]
    mixed = df.loc[("mixed", "s02_prealloc_gather")], df.loc[("equal", "s02_prealloc_gather")]
    assert mixed[0]["bytes zeroed"] > mixed[1]["bytes zeroed"]
    assert "step ms" not in repr(table) and "step ms" in table.to_html()


def test_compare_shapes_holds_one_stage_at_a_time_and_takes_turns(small):
    """A stage may hold a copy of the weights."""
    alive, made = weakref.WeakSet(), []

    class First(NaiveCat):
        name = "first"

        def __init__(self, *args, **sizes):
            assert not alive
            super().__init__(*args, **sizes)
            alive.add(self)
            made.append(self.name)

    class Second(First):
        name = "second"

    table = teach.compare_shapes([First, Second], small, {"a batch": [4]}, steps=3)
    assert made == ["first", "second", "second", "first"]
    assert "median of 4 steps, in 2 turns" in table.note


def test_sql_shows_all_and_compares_the_exact_columns():
    import torch

    from roseinfer.profiling import capture, span

    def step():
        with span("roseinfer.test"):
            torch.ones(2) + 1

    trace = capture(step, steps=2, warmup=1)
    query = "SELECT name, COUNT(*) AS n, SUM(dur) AS total FROM slice WHERE name = 'aten::ones' GROUP BY name"
    table = teach.sql(trace, query)
    assert "total" not in repr(table) and "total" in table.to_html() and "aten::ones" in repr(table)
