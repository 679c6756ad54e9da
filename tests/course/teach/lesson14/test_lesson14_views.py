"""Lesson 14: what the pictures of recorded runs say, exactly where a run is exact, and no wider than the page."""

from __future__ import annotations

import io
import json
from collections import Counter

import pytest
from oracles import small_model
from PIL import Image

from course import teach
from course.teach.views.run_charts import EMPTY, slots_of
from roseinfer.arrivals import at_once
from roseinfer.bench.online import online
from roseinfer.bench.settings import Online
from roseinfer.display.chart import VEGA_LITE
from stages import Graphs, TokenBudget

ARRIVALS = [(0, 6, 9), (0, 20, 3), (1, 9, 4), (2, 3, 6)]
VIEWS = ("draw_requests", "draw_slots", "draw_steps", "draw_gaps")
PAGE = 880  # pixels


def runs_of(clock="steps", scale=1):
    model = small_model()
    work = teach.work(model, [(scale * when, *sizes) for when, *sizes in ARRIVALS])
    sizes = {"block_size": 4, "max_num_seqs": 3}
    budget = TokenBudget(model, num_blocks=7, **sizes, max_num_batched_tokens=8)
    return [
        teach.record_run(budget, work, clock),
        teach.record_run(Graphs(model, num_blocks=32, **sizes), work, clock, name="generate's loop"),
    ]


@pytest.fixture(scope="module")
def runs():
    return runs_of()


@pytest.mark.parametrize(
    "view, text",
    [
        (
            "draw_requests",
            "s14_token_budget, budget 8: 4 requests, 22 tokens by time 21, 32 spent waiting or stalled, 1 preemptions\n"
            "generate's loop: 4 requests, 22 tokens by time 12, 10 spent waiting or stalled, 0 preemptions",
        ),
        (
            "draw_slots",
            "s14_token_budget, budget 8: 4 requests in 2 slots by time 21, and 19% of the slots' time empty\n"
            "generate's loop: 4 requests in 3 slots by time 12, and 25% of the slots' time empty",
        ),
        (
            "draw_steps",
            "s14_token_budget, budget 8: 21 steps, 18 decode, 16 recomputed, 38 prompt, at most 8 in one\n"
            "generate's loop: 12 steps, 18 decode, 38 prompt, at most 20 in one",
        ),
        (
            "draw_gaps",
            "s14_token_budget, budget 8: 18 gaps between tokens, the longest 1 steps\n"
            "generate's loop: 18 gaps between tokens, the longest 3 steps",
        ),
    ],
)
def test_in_steps_a_picture_says_exact_facts(runs, view, text):
    assert repr(getattr(teach, view)(*runs)) == text


def test_a_static_batch_leaves_slots_empty_until_its_longest_request_ends():
    model = small_model()
    loop = teach.StaticBatches(Graphs(model, num_blocks=32, block_size=4, max_num_seqs=2))
    run = teach.record_run(loop, teach.work(model, [(0, 3, 8), (0, 3, 3), (1, 3, 2)]))
    first, second = slots_of(run)
    assert [(span.request, span.begin, span.end) for span in first if span.kind != EMPTY][-1] == (2, 10, 11)
    assert [(span.begin, span.end) for span in second if span.kind == EMPTY] == [(0, 1), (4, 11)]


def test_what_a_step_has_of_each_kind_is_stacked(runs):
    """Vega-Lite does so by itself for some axes only; then the shorter bar would hide behind the longer one."""
    for panel in teach.draw_steps(*runs).spec["vconcat"]:
        assert panel["layer"][0]["encoding"]["y"]["stack"] == "zero"


def test_by_the_wall_clock_it_says_what_is_the_same_every_time():
    first, second = (runs_of("wall", 0.001) for _ in range(2))
    for view in VIEWS:
        assert repr(getattr(teach, view)(*first)) == repr(getattr(teach, view)(*second))


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        *(lambda runs, view=view: getattr(teach, view)(*runs) for view in VIEWS),
        lambda runs: teach.draw_step_times(*runs),
        lambda runs: teach.draw_budgets(runs[0], runs[0]),
    ],
    ids=[*VIEWS, "draw_step_times", "draw_budgets"],
)
def test_it_is_alive_and_has_a_picture_that_fits_the_page(runs, draw):
    data, metadata = draw(runs)._repr_mimebundle_()
    assert set(data) == {"text/plain", VEGA_LITE, "image/png"} and metadata["image/png"]["alt"]
    assert Image.open(io.BytesIO(data["image/png"])).width / 1.5 <= PAGE


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda runs: teach.draw_steps("a run"), "runs must be at least one Run, .*'a run'"),
        (lambda runs: teach.draw_gaps(runs[0], runs_of("wall", 0.001)[0]), "by one clock .*, got steps, seconds"),
    ],
)
def test_what_makes_no_picture(runs, call, message):
    with pytest.raises(ValueError, match=message):
        call(runs)


@pytest.mark.slow
def test_recorded_online_runs_are_charts_and_change_no_text(tmp_path):
    nothing = teach.recorded_online(tmp_path)
    assert "shown here once there is a run" in nothing.to_html()
    sizes = {"num_requests": 2, "scale": 1, "prompt_lens": (4, 4), "output_lens": (2, 2), "max_num_seqs": 2}
    (tmp_path / "online").mkdir()
    setting = Online(**sizes, contenders=["engine"], budgets=[8, 4], repeats=1, device="cpu")
    result = json.loads(online(setting).to_json())
    for name, budgets in (("mine", [8, 4]), ("a point is no curve", [8])):
        run = result | {"arguments": result["arguments"] | {"budgets": budgets}}
        (tmp_path / "online" / f"{name}.json").write_text(json.dumps(run), encoding="utf-8")
    found = teach.recorded_online(tmp_path)
    assert (
        repr(found)
        == repr(nothing)
        == ("from the runs in data/online, where there are any: throughput and latency over token budgets")
    )
    assert "mine" in found.to_html() and "a point" not in found.to_html() and found.to_html().count("<img") == 1
    (tmp_path / "online" / "bad.json").write_text(json.dumps({"rows": []}), encoding="utf-8")
    with pytest.raises(ValueError, match="bad.json is no result as `roseinfer bench online` writes it"):
        teach.recorded_online(tmp_path)


def test_all_at_once_is_the_same_run_by_any_clock():
    work = teach.work(small_model(), at_once(3, prompt_lens=(5, 9), output_lens=(3, 5)))
    shapes = []
    for clock in ("steps", "wall"):
        stage = TokenBudget(small_model(), num_blocks=16, block_size=4, max_num_seqs=3, max_num_batched_tokens=6)
        run = teach.record_run(stage, work, clock)
        shapes.append([[row[:2] for row in step.rows] for step in run.steps])
    assert shapes[0] == shapes[1]


TIMED = {
    "draw_requests": "4 requests, 22 tokens",
    "draw_slots": "4 requests",
    "draw_gaps": "18 gaps between tokens",
    "draw_steps": "of prompts among them",
    "draw_first_tokens": "first tokens of 4 requests",
    "draw_step_times": "s14_token_budget, budget 8",
    "draw_budgets": "budgets: 8",
}


@pytest.mark.parametrize(("view", "text"), TIMED.items())
def test_a_picture_by_the_wall_clock_says_how_many_graphs_were_captured_meanwhile(view, text):
    model = small_model()
    work = teach.work(model, [(0, *sizes) for _, *sizes in ARRIVALS])
    stage = TokenBudget(model, num_blocks=32, block_size=4, max_num_seqs=3, max_num_batched_tokens=8)
    cold, warm = (teach.record_run(stage, work, "wall") for _ in range(2))
    assert (cold.num_captures, warm.num_captures) == (len(stage.graphs), 0)
    told = f"{text}, {len(stage.graphs)} graphs captured meanwhile"
    assert told in repr(getattr(teach, view)(cold))
    assert text in (shown := repr(getattr(teach, view)(warm))) and "captured" not in shown


def test_a_step_that_captures_its_graph_is_not_drawn_as_a_replayed_one():
    model = small_model()
    work = teach.work(model, [(0, *sizes) for _, *sizes in ARRIVALS])
    stage = TokenBudget(model, num_blocks=32, block_size=4, max_num_seqs=3)
    cold, warm = (teach.record_run(stage, work, "wall") for _ in range(2))

    def kinds(*runs):
        points = teach.draw_step_times(*runs).spec["data"]["values"].splitlines()[1:]
        return Counter(point.rpartition(",")[2].strip('"') for point in points)

    captured, replayed = "decode only; captures its graph", "decode only; replayed"
    assert kinds(cold)[captured] == len(stage.graphs) and kinds(cold)[replayed] > 0
    assert captured not in kinds(warm) and kinds(warm)[replayed] > kinds(cold)[replayed]
