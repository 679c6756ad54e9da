"""Serving by the clock: exact times by a fake one, the race, its tables, and what Ctrl-C leaves."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.online import OnlineResult, chunks, latency_chart, online
from roseinfer.bench.online.result import rows_of
from roseinfer.bench.race import Contender, Run
from roseinfer.bench.settings import Chunks, Online, Workload
from roseinfer.bench.token_check import TokensDiffer
from roseinfer.bench.workload import with_prompts
from roseinfer.cli.main import main
from roseinfer.engine.engine import Engine
from roseinfer.engine.metrics import SequenceTimes
from roseinfer.engine.step import StepRecord
from roseinfer.models import GPT2

pytestmark = pytest.mark.slow


contenders = importlib.import_module("roseinfer.bench.online.contenders")
REQUESTS = {"num_requests": 5, "prompt_lens": (4, 20), "output_lens": (2, 4)}
FEW = Workload(**REQUESTS)


def served(spec: str, on_progress=None, **given) -> OnlineResult:
    return online(Online(model=spec, **REQUESTS | {"scale": 1, "device": "cpu"} | given), on_progress)


@pytest.fixture(scope="module", autouse=True)
def no_garbage_is_collected() -> Iterator[None]:
    """transformers asks for it twice after each run, and a process of tests has much to look through."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        yield


# Workloads


def test_a_workload_has_the_same_prompts_at_every_rate(small: GPT2):
    at_once, slow = FEW.arrivals(None), FEW.arrivals(0.5)
    assert {a.seconds for a in at_once} == {0} and slow[-1].seconds > 0
    assert [p for _, p in with_prompts(at_once, small)] == [p for _, p in with_prompts(slow, small)]
    assert [len(prompt) for _, prompt in with_prompts(slow, small)] == [a.prompt_len for a in slow]


def test_prompts_share_a_prefix_and_nothing_else(small: GPT2):
    workload = replace(FEW, prefix_len=8, burst=2)
    arrivals = workload.arrivals(3.0)
    assert [a.seconds == b.seconds for a, b in zip(arrivals[::2], arrivals[1::2], strict=False)] == [True, True]
    prompts = [prompt for _, prompt in with_prompts(arrivals, small)]
    assert len({tuple(prompt[:8]) for prompt in prompts}) == 1 and len({tuple(p[8:]) for p in prompts}) == 5


# The race


@pytest.fixture(scope="module")
def result(spec: str) -> OnlineResult:
    return served(spec, budgets=[32, 3], rates=[200.0], loads=[0.5], repeats=2, max_num_seqs=4)


def test_all_run_in_turn_at_every_load_with_every_budget(result: OnlineResult):
    keys = [(s["name"], s["budget"]) for s in result.samples]
    names = ["engine", "HF continuous batching"]
    first = [(name, budget) for budget in (32, 3) for name in names]
    turned = first[1:] + first[:1]
    assert keys == (first + turned) * 2
    assert [s["load"] for s in result.samples] == ["200/s"] * 8 + ["50% of capacity"] * 8
    assert result.capacity["name"] == "engine" and result.capacity["budget"] == 32
    assert result.samples[-1]["rate"] == result.capacity["requests_per_second"] / 2


def test_tokens_of_all_are_the_references(result: OnlineResult):
    assert result.tokens == dict.fromkeys(["engine", "HF continuous batching"], "equal")
    assert "Tokens equal the reference's." in result.note
    assert all(s["complete"] and s["finished"] == 5 for s in result.samples)
    assert len({s["tokens"] for s in result.samples}) == 1


def test_a_small_budget_runs_with_as_many_sequences_and_says_so(result: OnlineResult):
    assert {(row["budget"], row["max_num_seqs"]) for row in result.rows} == {(32, 4), (3, 3)}
    assert "max_num_seqs is 4, and with a budget below it (3) as small as the budget" in " ".join(result.note.split())


def test_steps_of_the_engine_keep_the_budget_and_the_order_of_the_timestamps(result: OnlineResult):
    for sample in result.samples:
        for scheduled, begin, end, finish, num_tokens, *_ in sample["steps"]:
            assert scheduled <= begin <= end <= finish and 1 <= num_tokens <= sample["budget"]
        for request in sample["requests"]:
            assert request["arrival"] <= request["first_scheduled"] <= request["finish"][0]
            assert request["finish"] == sorted(request["finish"])
        assert bool(sample["steps"]) == (sample["name"] == "engine")


def test_json_has_everything_and_the_printed_line_all_but_the_samples(result: OnlineResult):
    data, line = json.loads(result.to_json()), json.loads(result.to_line())
    assert len(data["samples"]) == 16 and "samples" not in line and line["arguments"] == data["arguments"]
    assert [row["name"] for row in line["rows"]] == [row["name"] for row in data["rows"]]
    assert all(row["requests_per_second_min"] <= row["requests_per_second"] for row in line["rows"])
    assert data["definitions"]["waiting_time"].startswith("waiting_time (per request) = first_scheduled - arrival")
    assert data["arguments"]["budgets"] == [32, 3] and {"python", "torch", "transformers"} <= data["versions"].keys()


def test_a_table_for_each_load(result: OnlineResult):
    one, two, note = result.text().split("\n\n")
    assert one.splitlines()[0].endswith("prompts of 4 to 20 tokens, outputs of 2 to 4, 200/s; times in ms")
    assert len(one.splitlines()) == 3 + 4 + 1 and "50% of capacity" in two
    assert "2 interleaved runs each" in " ".join(note.split())
    long = result.text(long=True).split("\n\n")
    assert len(long) == 5 and sum("waiting_time" in line for line in long[1].splitlines()) == 4
    assert sum("scheduling_time" in line for line in long[1].splitlines()) == 2  # transformers does not tell


def test_the_chart_has_a_curve_a_contender_and_load_and_a_point_a_budget(result: OnlineResult):
    chart = latency_chart(result)
    panels = chart.spec["datasets"].values()  # each has labels of its own
    assert {p["budget"] for rows in panels for p in rows} == {32, 3}
    [points] = [rows for rows in panels if len(rows) == len(result.rows) == 8][:1]
    assert len({p["curve"] for p in points}) == 4 and "HF continuous batching, 200/s" in chart.text
    without_hf = [rows for rows in panels if not any("HF" in p["curve"] for p in rows)]
    assert without_hf and all(p["latency"] is not None for rows in without_hf for p in rows)
    assert chart.png.startswith(b"\x89PNG")


def test_a_prefix_that_all_share_is_found(spec: str):
    result = served(spec, budgets=[256], prefix_len=128, repeats=1)
    ours, theirs = result.rows
    assert theirs["prefix_cache_hit_rate"] is None and ours["prefix_cache_hit_rate"] > 0.5
    head, _, first, second = result.text().split("\n\n")[0].splitlines()[1:]
    assert head.endswith("hits") and first.endswith("%") and second.endswith("-") and "preempted" not in head


def test_wrong_tokens_fail_in_fp32_alone(spec: str, monkeypatch: pytest.MonkeyPatch):
    def wrong(setting, model, budget):
        def run(work, stop):
            times = [SequenceTimes(0.0, 0.0, [StepRecord(0, 0, 1, 1)] * a.output_len, 1.0) for a, _ in work]
            outputs = [[0] * a.output_len for a, _ in work]
            return Run(len(work), 0.0, times, outputs, [True] * len(work))

        return Contender("engine", "engine", {"budget": budget, "max_num_seqs": 4}, run)

    monkeypatch.setattr(contenders, "engine", wrong)
    setting = {"contenders": ["engine"], "budgets": [32], "repeats": 1}
    with pytest.raises(TokensDiffer, match=r"^engine: tokens differ from the reference at index \d of sequence"):
        served(spec, **setting)
    assert served(spec, dtype="bfloat16", **setting).tokens == {}


def test_who_cannot_run_is_told(spec: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(model):
        raise ValueError("transformers cannot hold it")

    monkeypatch.setattr(contenders, "to_hf", refuse)
    with pytest.raises(ContenderFailed, match="^no contender can run: transformers cannot hold it$"):
        served(spec, contenders=["hf"])
    result = served(spec, budgets=[32], repeats=1, num_requests=2)
    assert "HF continuous batching left out: transformers cannot hold it." in result.note


def test_progress_counts_every_run(spec: str):
    seen = []
    served(spec, seen.append, contenders=["engine"], budgets=[32, 8], loads=[0.5], repeats=2)
    assert [p.runs_done for p in seen] == list(range(7)) and {p.runs_total for p in seen} == {7}
    assert [p.phase for p in seen] == ["warm-up"] * 2 + ["capacity"] + [
        f"50% of capacity, repeat {repeat} of 2" for repeat in (1, 1, 2, 2)
    ]


# Rows


def sample(name: str, speed: float, complete: bool = True, **metrics: float) -> dict:
    found = {metric: {"p50": value, "max": value} for metric, value in metrics.items()}
    return {
        "load": "all at once",
        "name": name,
        "budget": 64,
        "max_num_seqs": 8,
        "complete": complete,
        "finished": 3,
        "num_requests": 10,
        "requests_per_second": speed,
        "tokens_per_second": 4 * speed,
        "metrics": found,
        "counters": {"preemptions": 2, "prefix_cache_hit_rate": 0.5},
    }


def test_rows_are_medians_and_ratios_to_transformers_with_the_same_budget():
    theirs = [sample("HF continuous batching", speed) | {"counters": {}} for speed in (2.0, 2.1, 2.2)]
    ours = [sample("engine", speed, ttft=speed / 4) for speed in (6.0, 5.0, 8.0)]
    engine, hf = rows_of([*ours, *theirs])
    assert engine["requests_per_second"] == 6 and engine["requests_per_second_max"] == 8
    assert engine["vs_hf"] == pytest.approx(6 / 2.1) and engine["verdict"] == "faster in 3 of 3 runs"
    assert engine["metrics"] == {"ttft": {"p50": 1.5, "max": 1.5}} and engine["preemptions"] == 2
    assert hf["vs_hf"] is None and hf["preemptions"] is None


def test_each_contenders_own_best_budget_is_told(result: OnlineResult):
    rows = [
        sample_row | {"load": "200/s", "requests_per_second": speed}
        for sample_row, speed in zip(result.rows, (3, 1, 4, 5), strict=False)
    ]
    said = replace(result, rows=rows).text().split("\n\n")[0].splitlines()[-1]
    assert said == ("most requests a second: engine 3 (4.00 req/s), HF continuous batching 3 (5.00 req/s)")


def test_a_run_that_is_not_complete_counts_only_where_there_is_no_other():
    [whole] = rows_of([sample("engine", 6.0), sample("engine", 1.0, complete=False)])
    assert whole["requests_per_second"] == 6 and not whole["partial"] and whole["runs"] == 1
    [part] = rows_of([sample("engine", 1.0, complete=False)])
    assert part["partial"] and (part["finished"], part["num_requests"]) == (3, 10)


# A long prompt among those that decode


def test_a_long_prompt_takes_as_many_steps_as_the_budget_leaves_room_for(spec: str):
    result = chunks(Chunks(model=spec, prompt_len=60, num_decoding=4, budgets=[16, 32], repeats=2, device="cpu"))
    assert [(row["budget"], row["chunks"]) for row in result.rows] == [(None, 1), (16, 5), (32, 3)]  # 60 / (16 - 4)
    assert result.rows[0]["vs_whole"] == 1
    assert all(row["worst_itl"] > 0 and row["ttft"] > 0 and row["alone"] > 0 for row in result.rows)
    assert len(result.samples) == 6 and "no chunks" in result.text()


def test_too_long_a_prompt_is_refused(spec: str):
    with pytest.raises(ValueError, match="prompt_len=448 .* tokens, allowed: max_model_len=192"):
        chunks(Chunks(model=spec))


# The command

SMALL = "--requests 5 --scale 1 --prompt-len 4-20 --output-len 2-4 --repeats 1 --budgets 32 --device cpu"


def test_the_command_prints_a_table_and_a_line_of_json_and_draws(spec: str, tmp_path: Path, capsys):
    out, trace = tmp_path / "online.json", tmp_path / "trace.jsonl"
    lines = [{"seconds": at, "prompt_len": 4 + n, "output_len": 2 + n} for n, at in enumerate((0, 0.01))]
    trace.write_text("\n".join(map(json.dumps, lines)))
    charts = [flag for name in ("c.png", "c.svg") for flag in ("--chart", str(tmp_path / name))]
    files = ["--output", str(out), "--trace", str(trace), *charts]
    assert main(["bench", "online", "--model", spec, *files, *SMALL.split()]) == 0
    shown, said = capsys.readouterr()
    assert said == "" and f"2 requests of {trace}" in shown and "HF continuous batching" in shown
    short, whole = (json.loads(text)["rows"] for text in (shown.splitlines()[-1], out.read_text()))
    assert [(row["name"], row["budget"]) for row in short] == [(row["name"], row["budget"]) for row in whole] != []
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "c.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("after", [2, 12])
def test_ctrl_c_prints_what_there_is_as_partial(spec: str, monkeypatch: pytest.MonkeyPatch, capsys, after: int):
    """In the warm-up, or in the first run."""
    made, step = [], Engine.step

    def pressed_step(engine: Engine):
        made.append(engine)
        if len(made) == after:
            os.kill(os.getpid(), signal.SIGINT)
        return step(engine)

    monkeypatch.setattr(Engine, "step", pressed_step)
    arguments = [*SMALL.split(), "--contenders", "engine", "--max-num-seqs", "1", "--output-len", "2"]
    assert main(["bench", "online", "--model", spec, *arguments]) == 130
    shown, said = capsys.readouterr()
    data = json.loads(shown.splitlines()[-1])
    assert said == "interrupted: the result is partial\n" and shown.startswith("PARTIAL RESULT, interrupted: ")
    assert len(made) == after and made[-1].blocks.num_free == made[-1].blocks.num_blocks
    if after == 2:
        assert data["rows"] == [] and data["interrupted"] == "in a warm-up, or between two runs"
    else:
        assert data["interrupted"] == "engine, budget 32, all at once: 2 of 5 requests were done"
        assert "engine (partial: 2 of 5)" in shown
