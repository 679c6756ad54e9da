"""The same 24 requests: exact facts, equal tokens for every stage, numbers that agree, and a chart that says them."""

from __future__ import annotations

import json
from dataclasses import replace

import nbformat
import pytest
import torch
from tiers import at_night

from course.own_engine import assembled
from course.teach.served import kept
from course.teach.served import serve as serving_runs
from course.teach.served import serve_requests as serving
from course.teach.served.chart import ServedChart, sentence
from course.teach.served.kept import Served
from course.teach.served.serve import block_bytes, measure, queue_of, serve
from course.teach.served.serve_requests import recorded_requests, serve_requests, stages_up_to
from course.teach.served.workload import MAX_TOKENS, NUM_REQUESTS, SIZES, TOKENS_IN, TOKENS_OUT, requests
from roseinfer.bench.token_check import NEAR_TIE, Referee, TokensDiffer
from roseinfer.display.chart import VEGA_LITE
from roseinfer.engine.as_stage import EngineStage
from roseinfer.models import load_model
from roseinfer.paths import ROOT
from roseinfer.reference import reference_logits
from stages import (
    LADDER,
    FewLaunches,
    Graphs,
    NaiveCat,
    OneTable,
    PrefixCache,
    SelectAppend,
    Speculative,
    TensorParallel,
    TokenBudget,
    TritonPaged,
)  # fmt: skip
from tools.quiet import not_the_best
from tools.requests import record

CPU = torch.device("cpu")
# Of each kind one: without a queue, with one, with drafts, two processes. A record checks the tokens of all stages.
STAGES = (NaiveCat, TokenBudget, PrefixCache, Speculative, TensorParallel, EngineStage)
NIGHTLY = ("s14", "s19", "s21")  # a queue is in s15, too, and drafts and processes in the engine's own tests
FEW = 6  # requests: the pool has room for twice as many at once. All of them are tried at night
NAIVE = Served("s01_naive_cat", 4.0, 3.9, 4.1, 1.0, 3.0, 171.0, 21_000_000.0)
FAST = replace(NAIVE, name="s03_select_append", seconds=2.0, fastest=1.9, slowest=2.1, first_token=0.5)
ENGINE = replace(NAIVE, name="engine", seconds=0.5, fastest=0.4, slowest=0.51, kv_bytes=5_000_000.0)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "requests.jsonl"
    monkeypatch.setenv(kept.PLACE, str(path))
    return path


@pytest.fixture
def timed(monkeypatch):
    """Names of the stages that were measured; each takes no time."""
    calls = []

    def measured(stage, model, work, referee):
        calls.append(stage.name)
        return replace(NAIVE, name=stage.name)

    monkeypatch.setattr(serving, "measure", measured)
    return calls


def names(chart):
    return [row.name for row in chart.rows]


# The requests


def test_the_requests_have_exact_facts():
    work = requests()
    prompts = [prompt for _, prompt in work]
    assert (len(work), sum(map(len, prompts))) == (NUM_REQUESTS, TOKENS_IN)
    assert [arrival.seconds for arrival, _ in work] == sorted(arrival.seconds for arrival, _ in work)
    shared = next(i for i, tokens in enumerate(zip(*prompts, strict=False)) if len(set(tokens)) > 1)
    assert shared >= 16 * SIZES["block_size"], "a prefix cache finds whole blocks"
    assert len(set(map(tuple, prompts))) == NUM_REQUESTS - 1, "two of them ask the same"


@pytest.fixture(scope="module")
def right():
    """All answers, as the stage that is easiest to follow gives them: the reference's tokens."""
    model, work = load_model("tiny", device="cpu"), requests()
    run, _ = serve(queue_of(NaiveCat, model), work)
    for (_, prompt), output in zip(work, run.outputs, strict=True):
        two = reference_logits(model, prompt + output[:-1])[len(prompt) - 1 :].topk(2)
        assert two.indices[:, 0].tolist() == output
        assert (two.values[:, 0] - two.values[:, 1]).min() > NEAR_TIE, "elsewhere its tokens could differ"
        assert (output[-1] in model.config.eos_token_ids) != (len(output) == MAX_TOKENS)
    assert run.complete and run.num_tokens == TOKENS_OUT
    return run.outputs


@pytest.mark.slow
@pytest.mark.parametrize("num", [FEW, pytest.param(NUM_REQUESTS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("stage", at_night(STAGES, NIGHTLY), ids=lambda stage: stage.name)
def test_a_stage_has_the_references_tokens_and_loses_no_block(stage, num, right):
    model, work = load_model("tiny", device="cpu"), requests()[:num]
    queue = queue_of(stage, model)
    run, most_held = serve(queue, work)
    assert run.outputs == right[:num] and run.complete
    blocks = queue.blocks if stage is EngineStage else getattr(queue, "stage", queue).tables
    assert blocks.num_free == SIZES["num_blocks"] and not queue.has_work
    least = -(-max(len(prompt) for _, prompt in work) // SIZES["block_size"])
    assert least <= most_held <= SIZES["num_blocks"]


@pytest.mark.slow
def test_the_numbers_of_a_stage_agree(monkeypatch):
    model, work = load_model("tiny", device="cpu"), requests()[:FEW]
    num_tokens = serve(queue_of(SelectAppend, model), work)[0].num_tokens
    monkeypatch.setattr(serving_runs, "REPEATS", 2)
    monkeypatch.setattr(serving_runs, "TOKENS_OUT", num_tokens)
    row = measure(SelectAppend, model, work, Referee(model, [prompt for _, prompt in work]))
    assert row.name == SelectAppend.name
    assert row.fastest <= row.seconds <= row.slowest
    assert 0 < row.first_token <= row.slowest_first_token <= row.seconds
    assert row.tokens_per_second * row.seconds == pytest.approx(num_tokens)
    assert row.kv_bytes % block_bytes(model) == 0 and block_bytes(model) == 2 * 4 * 192 * 4 * SIZES["block_size"]


def test_wrong_tokens_get_no_number():
    model, work = load_model("tiny", device="cpu"), requests()[:1]
    with pytest.raises(TokensDiffer, match=f"engine: .* tokens in all answers, expected {TOKENS_OUT}"):
        measure(EngineStage, model, work, Referee(model, [work[0][1]]))


# The last cell


def test_each_stage_is_measured_once(timed):
    first = serve_requests(NaiveCat)
    assert names(first) == ["s01_naive_cat", "engine"]
    assert repr(first) == f"24 requests, 6,390 tokens in, {TOKENS_OUT} out, served by the stages up to s01_naive_cat"
    third = serve_requests(SelectAppend)
    assert names(third) == ["s01_naive_cat", "s02_prealloc_gather", "s03_select_append", "engine"]
    assert timed == ["s01_naive_cat", "engine", "s02_prealloc_gather", "s03_select_append"]
    assert serve_requests(SelectAppend).rows == third.rows and len(timed) == 4


def test_an_engine_of_your_own_has_a_bar_which_is_not_kept(timed, monkeypatch):
    monkeypatch.setattr(serving, "my_engine", lambda: assembled({}))
    for _ in range(2):
        chart = serve_requests(NaiveCat)
        assert names(chart) == ["s01_naive_cat", "my_engine", "engine"]
        assert chart.spec["datasets"]["served"][1]["kind"] == "yours"
        assert chart.spec["title"]["subtitle"][-1].endswith(
            "dark: this lesson, dashed: the engine, green: your own engine"
        )
    assert timed == ["s01_naive_cat", "engine", "my_engine", "my_engine"]
    monkeypatch.setenv(kept.PLACE, kept.RECORDED)
    assert names(serve_requests(NaiveCat)) == ["s01_naive_cat", "engine"]


def test_what_a_busy_machine_made_unsteady_is_measured_again(timed):
    serve_requests(NaiveCat)
    kept.keep(kept.key(CPU, LADDER), [replace(ENGINE, fastest=0.2)])
    serve_requests(NaiveCat)
    assert timed[2:] == ["engine"]


def test_a_stage_that_cannot_be_timed_here_is_named_with_its_reason(timed):
    chart = serve_requests(TritonPaged)
    assert TritonPaged.name not in names(chart) and TritonPaged.name not in timed
    assert any(TritonPaged.name in line and "left out" in line for line in chart.spec["title"]["subtitle"])


def test_where_nothing_is_timed_the_recorded_requests_are_shown(timed, monkeypatch):
    monkeypatch.setenv(kept.PLACE, kept.RECORDED)
    chart = serve_requests(SelectAppend, why="A reason.")
    assert timed == [] and names(chart) == ["s01_naive_cat", "s02_prealloc_gather", "s03_select_append", "engine"]
    assert "A reason." in chart.spec["title"]["subtitle"]


@pytest.mark.parametrize(
    ("stage", "before"),
    [
        (NaiveCat, ""),
        (Graphs, "s12_packed_weights"),
        (TensorParallel, "s10_one_table"),
        (EngineStage, "s19_speculative"),
    ],
)
def test_a_stage_is_compared_with_the_one_that_it_builds_on(stage, before):
    line = [each for each in stages_up_to(stage) if not each.why_untimed(CPU)]
    assert serving._before(stage, line) == before


def test_what_no_stage_builds_on_stands_in_its_own_lesson_alone():
    assert TensorParallel in stages_up_to(TensorParallel) and OneTable in stages_up_to(TensorParallel)
    assert not {TensorParallel, FewLaunches} & {*stages_up_to(EngineStage), *stages_up_to(Speculative)}


def test_bad_input(timed):
    with pytest.raises(ValueError, match="stage must be one of the package `stages`.*got .*int"):
        serve_requests(int)


# What was measured


def test_numbers_are_kept_by_key():
    kept.keep("one", [NAIVE, FAST])
    kept.keep("two", [replace(NAIVE, seconds=1.0)])
    kept.keep("one", [later := replace(NAIVE, seconds=5.0)])
    assert kept.kept("one") == {NAIVE.name: later, FAST.name: FAST}
    assert kept.kept("three") == {}


@pytest.mark.parametrize("damage", ["{", "[]", "3", '{"key": "one"}', '{"key": "one", "name": "x", "slowest": null}'])
def test_a_damaged_line_loses_no_other(place, damage):
    kept.keep("one", [NAIVE])
    with place.open("a", encoding="utf-8") as file:
        file.write(f"\n{damage}")
    kept.keep("one", [FAST])
    assert list(kept.kept("one")) == [NAIVE.name, FAST.name]


def test_a_file_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(kept.PLACE, str(tmp_path / "file" / "requests.jsonl"))
    with pytest.warns(UserWarning, match="times of the 24 requests are not kept.*ROSEINFER_REQUESTS"):
        kept.keep("one", [NAIVE])
    assert kept.kept("one") == {}


def test_the_key_says_machine_torch_and_code(monkeypatch):
    key = kept.key(CPU, LADDER)
    assert key == kept.key(CPU, LADDER) and f"torch {torch.__version__}" in key
    monkeypatch.setattr(kept, "ROOMS", ("stage.py",))
    assert kept.key(CPU, LADDER) != key


# The chart


def test_the_sentence_is_computed():
    assert sentence(FAST, NAIVE, ENGINE) == ("The same 24 requests, now in 2.00 s; they took 4.00 s with s01_naive_cat")
    assert sentence(NAIVE, None, ENGINE) == "s01_naive_cat answers 24 requests in 4.00 s, the engine in 0.50 s"


def test_the_chart_lights_the_lessons_stage_and_tells_its_numbers():
    chart = ServedChart([NAIVE, FAST, ENGINE], "a machine", "text", FAST.name, NAIVE.name)
    rows = chart.spec["datasets"]["served"]
    assert [row["kind"] for row in rows] == ["so far", "this lesson", "the goal"]
    assert [row["seconds"] for row in rows] == [4.0, 2.0, 0.5]
    numbers = "2.00 s; first token after 500 ms (median), at most 3,000 ms; 171 tok/s; 21.0 MB of KV cache"
    assert chart.spec["title"]["subtitle"] == [numbers, "a machine; dark: this lesson, dashed: the engine"]
    assert f"s03_select_append: {numbers}" in chart.alt
    assert chart.png.startswith(b"\x89PNG")


def test_no_bar_is_dashed_where_the_engine_is_the_lessons_own():
    chart = ServedChart([NAIVE, ENGINE], "a machine", "text", ENGINE.name, NAIVE.name)
    assert [row["kind"] for row in chart.spec["datasets"]["served"]] == ["so far", "this lesson"]
    assert chart.spec["title"]["subtitle"][-1] == "a machine; dark: this lesson"


def test_a_record_in_which_the_engine_is_not_the_best_says_what_to_look_at():
    rows = [vars(row) for row in (NAIVE, FAST, ENGINE)]
    assert not_the_best(rows) == ""
    said = not_the_best([*rows[:2], vars(replace(ENGINE, seconds=3.0))])
    assert said.startswith(
        "s03_select_append answers the requests in 2.00 s, the engine in 3.00 s: was the machine quiet"
    )


def test_nothing_is_written_where_the_engine_is_not_the_best(timed, monkeypatch, tmp_path):
    slow = {EngineStage.name: 9.0}
    monkeypatch.setattr(
        serving, "measure", lambda stage, *args: replace(NAIVE, name=stage.name, seconds=slow.get(stage.name, 4.0))
    )
    with pytest.raises(ValueError, match="the engine in 9.00 s"):
        record(tmp_path / "requests.json")
    slow.clear()
    record(tmp_path / "requests.json")
    where, rows = serving.read_recorded(tmp_path / "requests.json")
    assert where and rows["engine"].seconds == 4.0 and TensorParallel.name in rows
    (tmp_path / "requests.json").write_text("{}")
    with pytest.raises(ValueError, match=r"must be what `python -m tools.requests` wrote"):
        serving.read_recorded(tmp_path / "requests.json")


def test_the_record_is_whole_and_its_engine_the_best():
    chart = recorded_requests()
    assert names(chart) == [each.name for each in stages_up_to(EngineStage) if each is not TritonPaged]
    assert not_the_best([vars(row) for row in chart.rows]) == ""


def test_the_first_lesson_shows_the_requests_as_data_has_them():
    cells = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells
    [cell] = [cell for cell in cells if cell.cell_type == "code" and "teach.recorded_requests(" in cell.source]
    assert cell.outputs[0].data[VEGA_LITE] == json.loads(json.dumps(recorded_requests().spec)), (
        "record it again after data/requests.json"
    )
