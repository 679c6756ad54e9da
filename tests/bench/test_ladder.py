"""The ladder: interleaving, exact facts, wrong tokens named, and the command. Times come from a fake clock."""

from __future__ import annotations

import itertools
import json
import re
import weakref
from dataclasses import replace
from statistics import median

import pytest
import torch
from oracles import prompts_of, small_model

from roseinfer.bench.contenders import ContenderFailed, StageContender
from roseinfer.bench.ladder import ladder
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.settings import Ladder
from roseinfer.bench.token_check import Referee, TokensDiffer
from roseinfer.engine.as_stage import EngineStage
from roseinfer.models import GPT2
from roseinfer.reference import reference_generate
from stages import NaiveCat, PreallocGather, SelectAppend

pytestmark = pytest.mark.slow


DENSE = (NaiveCat, PreallocGather, SelectAppend)
SIZES = {"batch_size": 3, "prompt_len": 5, "max_new_tokens": 6, "repeats": 2}


@pytest.fixture(scope="module")
def result(small: GPT2) -> LadderResult:
    """By a clock that is one second later whenever it is read."""
    return ladder(DENSE, small, Ladder(**SIZES), clock=map(float, itertools.count()).__next__)


# The exact facts of a ladder


def test_counts_follow_the_formulas_of_the_stages(result: LadderResult):
    layers, batch, heads, head_dim, fp32 = 2, 3, 4, 8, 4
    cached = 5 + 2  # decode steps 0 to 4: the middle one is step 2
    token = heads * head_dim * fp32
    appended = layers * batch * 2 * token
    gathered = appended * cached
    with_new_token = gathered + appended  # every stage's attention cats the new token behind the past
    one, two, three, hf = result.rows
    assert [row["stage"] for row in result.rows] == [
        "s01_naive_cat",
        "s02_prealloc_gather",
        "s03_select_append",
        "HF generate",
    ]
    assert [row["copies"] for row in (one, two, three)] == [4 * layers * batch] * 3  # K, V; gather, append
    assert [row["cats"] for row in (one, two, three)] == [4 * layers, 2 * layers, 2 * layers]
    gathered_selects = 2 * layers * batch
    assert one["selects"] == two["selects"] == gathered_selects + 6 * layers * batch
    assert three["selects"] == gathered_selects + 2 * layers + 4 * layers * batch
    assert one["bytes_copied"] - two["bytes_copied"] == gathered
    assert two["bytes_copied"] == three["bytes_copied"] == gathered + with_new_token + appended
    assert one["aten_ops"] > two["aten_ops"] > three["aten_ops"]
    assert "copies" not in hf
    assert {row["tokens"] for row in result.rows} == {"equal"}


def test_only_decoding_is_timed_and_hf_like_the_stages(result: LadderResult):
    """With a clock of one second a reading, each prefill and each step takes a second."""
    for row in result.rows:
        assert row["step_ms"] == 1000
        assert row["tokens_per_second"] == row["tokens_per_second_min"] == row["tokens_per_second_max"] == 3
        assert row["total_tokens_per_second"] == 3
    assert [row["vs_first"] for row in result.rows] == [None, 1, 1, 1]
    assert [row["vs_previous"] for row in result.rows] == [None, 1, 1, None]
    assert {row["bound"] for row in result.rows} == {"the host"}  # as the products take microseconds
    assert len(result.samples) == 4 * SIZES["repeats"]
    assert {len(sample["step_seconds"]) for sample in result.samples} == {SIZES["max_new_tokens"] - 1}


def test_a_race_has_one_statistic(result: LadderResult):
    """tok/s, step ms and of floor are the same figure, the median of the runs' speeds by their median steps."""
    for row in result.rows:
        runs = [sample["tokens_per_second"] for sample in result.samples if sample["name"] == row["stage"]]
        assert row["tokens_per_second"] == median(runs)
        assert row["step_ms"] == pytest.approx(1e3 * SIZES["batch_size"] / row["tokens_per_second"])
        assert row["floor_share"] == pytest.approx(1e3 * result.floor["seconds"] / row["step_ms"])


def test_plain_text_has_no_times(result: LadderResult):
    plain = result._repr_mimebundle_()["text/plain"]
    lines = plain.splitlines()
    assert lines[0] == "3 sequences, prompt of 5 tokens, 6 new tokens each, float32"
    assert lines[1].split() == ["stage", "copies", "cats", "selects", "bytes", "copied", "tokens"]
    assert lines[3].split()[0] == "s01_naive_cat"
    faster = [row | {"tokens_per_second": 9e3, "step_ms": 0.1, "bound": "reading"} for row in result.rows]
    assert plain == repr(replace(result, rows=faster))


def test_html_has_the_times_the_floor_and_the_machine(result: LadderResult):
    live = result._repr_mimebundle_()["text/html"]
    for text in (
        "tok/s",
        "of floor, bound by",
        "Floor of a step at context 8",
        "linear-gradient",
        "HF generate",
        torch.__version__,
    ):
        assert text in live
    assert "bound by" not in result.note and re.search(r"tok/s, set by (reading|arithmetic)\.", result.note), (
        "what bounds a step stands in its own row"
    )


def test_a_race_is_told_in_six_columns_and_the_rest_is_folded(result: LadderResult):
    table, more = result._repr_mimebundle_()["text/html"].split("<details>")
    [header] = re.findall(r"<tr>(?:<th[^>]*>[^<]*</th>)+</tr>", table)
    assert re.findall(r">([^<]+)</th>", header) == [
        "stage",
        "tok/s (min..max)",
        "against the first",
        "of floor, bound by",
        "bytes copied",
        "tokens",
    ]
    assert "+0.0%, ranges overlap" in table and "3 (3..3)" in table
    folded = "of fastest, vs previous, total tok/s, step ms, products ms, aten ops, copies, cats, selects"
    assert f"more columns: {folded}" in more
    explained = "The same code measured twice"
    assert explained not in table and explained in more


def test_json_is_one_line_with_everything_needed_to_trust_it(result: LadderResult):
    line = result.to_json()
    assert "\n" not in line
    data = json.loads(line)
    assert data["arguments"] == {
        **SIZES,
        "stages": [stage.name for stage in DENSE],
        "seed": 0,
        "with_hf": True,
        "hf_caches": ["dynamic"],
    }
    assert data["versions"].keys() == {"python", "torch", "triton", "numba", "transformers"}
    assert data["device"] and data["machine"]["read_bytes_per_s"] > 0
    assert "commit" in data
    assert data["rows"] == result.rows
    assert data["samples"] == result.samples
    assert data["floor"]["context_len"] == 8


def test_half_precision_is_reported_not_asserted():
    model = small_model().to(torch.bfloat16)
    result = ladder([NaiveCat], model, Ladder(batch_size=2, prompt_len=4, max_new_tokens=4, repeats=1))
    assert all(row["tokens"] == "equal" or row["tokens"].startswith("differ") for row in result.rows)
    assert "tokens" not in repr(result).splitlines()[1].split()


def test_hf_has_a_row_for_each_kind_of_cache(small: GPT2, monkeypatch: pytest.MonkeyPatch):
    from transformers import StaticCache

    made, make = [], StaticCache.__init__
    monkeypatch.setattr(StaticCache, "__init__", lambda self, *a, **k: made.append(self) or make(self, *a, **k))
    result = ladder([NaiveCat], small, Ladder(**SIZES | {"repeats": 1}, hf_caches=("dynamic", "static")))
    assert [(row["stage"], row["tokens"], row["vs_previous"]) for row in result.rows] == [
        ("s01_naive_cat", "equal", None),
        ("HF generate", "equal", None),
        ("HF generate, static cache", "equal", None),
    ]
    assert len(made) == 2, "the static one's warm-up and its run"
    assert result.arguments["hf_caches"] == ["dynamic", "static"]
    assert "Static cache: allocated once" in result.explanation


# Wrong contenders


class SwapsSequences(PreallocGather):
    """Every sequence but the last appends another one's key and value."""

    def append(self, seqs, step):
        super().append(seqs[::-1], step)


class Raises(NaiveCat):
    def append(self, seqs, step):
        if seqs[0].num_cached_tokens == 6:
            raise IndexError("list index out of range")
        super().append(seqs, step)


class LosesBlocks(NaiveCat):
    def free(self, seq):
        self.tables._held.pop(seq.seq_id)


@pytest.mark.parametrize("stages", [[NaiveCat, SwapsSequences], [SwapsSequences, NaiveCat], [SwapsSequences]])
def test_wrong_tokens_are_blamed_on_who_is_wrong(small: GPT2, stages: list):
    with pytest.raises(TokensDiffer, match=r"^SwapsSequences: tokens differ from the reference at index \d+ of "):
        ladder(stages, small, Ladder(batch_size=3, prompt_len=5, max_new_tokens=12, repeats=1, with_hf=False))


def test_the_first_wrong_token_is_named(small: GPT2):
    prompts = prompts_of([5, 5], small.config.vocab_size)
    right = reference_generate(small, prompts, 6)
    wrong = [list(tokens) for tokens in right]
    wrong[1][3] = (right[1][3] + 1) % small.config.vocab_size
    message = rf"^X: .* index 3 of sequence 1: got {wrong[1][3]}, expected {right[1][3]}$"
    for first_seen in ([], [right]):
        referee = Referee(small, prompts)
        for outputs in first_seen:
            referee.check("right", outputs)
        with pytest.raises(TokensDiffer, match=message):
            referee.check("X", wrong)


def test_an_error_inside_a_stage_names_stage_and_step(small: GPT2):
    message = "^Raises failed in decode step 1: IndexError: list index out of range$"
    with pytest.raises(ContenderFailed, match=message) as caught:
        ladder([NaiveCat, Raises], small, Ladder(**SIZES, with_hf=False))
    assert isinstance(caught.value.__cause__, IndexError)


def test_lost_blocks_are_noticed(small: GPT2):
    with pytest.raises(ContenderFailed, match="^LosesBlocks lost blocks: 0 of 3 are free"):
        ladder([LosesBlocks], small, Ladder(**SIZES, with_hf=False))


@pytest.mark.parametrize(
    ("stages", "changed", "message"),
    [
        ([], {}, "stages must be a list of Stage classes"),
        (NaiveCat, {}, "stages must be a list of Stage classes"),
        (["s01"], {}, "stages must hold Stage classes"),
        ([NaiveCat, NaiveCat], {}, "stages must have names of their own"),
        ([NaiveCat], {"prompt_len": 190}, "prompt_len=190 .* 196 tokens, allowed: max_model_len=192"),
    ],
)
def test_bad_arguments_are_refused(small: GPT2, stages: list, changed: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ladder(stages, small, Ladder(**{**SIZES, **changed}))


def test_hf_cannot_hold_grouped_heads(grouped: GPT2):
    with pytest.raises(ValueError, match="with_hf=False"):
        ladder([NaiveCat], grouped, Ladder(**SIZES))
    result = ladder([NaiveCat], grouped, Ladder(**SIZES | {"repeats": 1}, with_hf=False))
    assert [(row["stage"], row["tokens"]) for row in result.rows] == [("s01_naive_cat", "equal")]
    assert "HF" not in result._repr_mimebundle_()["text/html"]


@pytest.mark.slow
def test_a_step_that_is_one_function_is_counted_as_that_function(small):
    counts = StageContender(EngineStage, small, [[1, 2, 3]], 3).counts(1)
    assert counts["aten_ops"] < 100 and counts["flops"] == 0


def test_a_contender_holds_one_stage_at_a_time(small):
    """A stage may hold a copy of all weights."""
    alive, most = weakref.WeakSet(), []

    class Counted(NaiveCat):
        def __init__(self, *args, **sizes):
            super().__init__(*args, **sizes)
            alive.add(self)
            most.append(len(alive))

    contender = StageContender(Counted, small, [[1, 2, 3]], 3)
    contender.run(lambda tokens, seconds: None)
    contender.counts(1)
    assert len(most) == 4 and max(most) == 1
