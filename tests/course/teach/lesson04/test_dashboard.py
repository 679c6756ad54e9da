"""The dashboard: what it shows is what the run recorded, and however a run ends, nothing stays held. No real times."""

from __future__ import annotations

import re
from html import unescape
from statistics import median

import nbformat
import pytest
import torch
from live_runs import LONG, MACHINE, SIZES, Made, Ticking, a_panel, assert_all_free, live, shown
from nbclient import NotebookClient

from course import teach
from course.teach.lesson04 import dashboard_chart, dashboard_panel, live_run
from course.teach.lesson04.dashboard import NOTHING_TO_PIN, Dashboard, dashboard
from course.teach.lesson04.dashboard_chart import RunChart
from course.teach.lesson04.dashboard_panel import IDLE, RunTable, rows_of
from course.teach.lesson04.live_batch import Lane, Step
from course.teach.lesson04.live_run import LiveRun, RunSettings
from roseinfer.display.chart import VEGA_LITE
from roseinfer.models import GPT2
from roseinfer.profiling import decode_floor
from roseinfer.reference import reference_generate
from stages import BlockTableCache, NaiveCat, PreallocGather, SelectAppend

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_a_known_machine")]
CELLS = [
    """\
from course import teach
from stages import NaiveCat, PreallocGather

class Mine(PreallocGather):
    "A learner's own class"

panel = teach.dashboard([NaiveCat, Mine], batch_size=2, max_new_tokens=400, repeat=True)
panel""",
    "panel.start()",
    """\
from time import sleep
while not (panel.run.current and panel.run.current.steps):
    sleep(0.01)
print('it decodes')""",
    "panel.stop(); print(panel.wait(60), panel.run.status, panel.run.current.blocks_held)",
]


def rows(html: str) -> dict[str, list[str]]:
    """The cells of each row of the table, by its first one."""
    table = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return {unescape(cells[0]): cells[1:] for cells in table}


def results(panel: Dashboard) -> str:
    return shown(panel._table._repr_html_())


def table(run: LiveRun, baseline: Lane | None) -> str:
    drawn = RunTable()
    drawn.show(run, rows_of(run, baseline), baseline)
    return drawn._repr_html_()


# what it is made with


def test_the_repr_says_what_it_was_made_with_and_nothing_runs():
    panel = dashboard([NaiveCat, PreallocGather], batch_size=2)
    assert repr(panel) == "Dashboard(2 stages, model tiny, batch 2, prompt 16, 128 new tokens, float32)"
    assert repr(teach.dashboard(NaiveCat)).startswith("Dashboard(s01_naive_cat, model tiny, batch 8, ")
    assert (panel.run, panel._live.value, panel.stages.value) == (None, IDLE, (NaiveCat,))
    panel.batch_size.value = 9
    assert "batch 2" in repr(panel)
    panel.stop()
    assert panel.wait() and panel.message == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": []}, "stages must be a list of Stage classes"),
        ({"stages": "s01"}, "stages must hold Stage classes"),
        ({"model": ""}, "model must be a spec such as 'tiny', got ''"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"prompt_len": 1.5}, "prompt_len must be an integer of at least 1, got 1.5"),
        ({"max_new_tokens": 1}, "max_new_tokens must be an integer of at least 2, got 1"),
        ({"dtype": "float64"}, "dtype must be one of float32, float16, bfloat16, got 'float64'"),
    ],
    ids=["no stage", "no class", "model", "batch_size", "prompt_len", "max_new_tokens", "dtype"],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        dashboard(**{"stages": [NaiveCat], **arguments})


def test_in_a_notebook_other_cells_run_meanwhile_and_nothing_leaks_into_them():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=LONG, kernel_name="python3", store_widget_state=False).execute()
    panel, start, other, stop = (cell.outputs for cell in notebook.cells)
    contract = "Dashboard(2 stages, model tiny, batch 2, prompt 16, 400 new tokens, float32)"
    assert [output.data["text/plain"] for output in panel] == [contract, dashboard_panel.TEXT, dashboard_chart.TEXT]
    assert "tok/s" in panel[1].data["text/html"] and panel[2].data[VEGA_LITE]["datasets"]["speeds"]
    assert start == []
    assert [output.text for output in other] == ["it decodes\n"]
    assert [output.text for output in stop] == ["True stopped 0\n"]


# a run


def test_all_chosen_stages_decode_in_turn_and_give_everything_back():
    panel = a_panel(Made, BlockTableCache)
    panel.start()
    assert panel.wait(LONG) and panel.run.error is None
    assert panel.run.status == "finished"
    assert {name: len(lane.steps) for name, lane in panel.run.lanes.items()} == {"Made": 5, "s06_block_table_cache": 5}
    assert "finished: s06_block_table_cache, decode step 5 of 5 blocks held: 0 of 2, every block is free" in live(panel)
    assert_all_free()


def test_a_learners_class_decodes_what_the_stage_itself_would(small: GPT2):
    outputs = []

    class Mine(PreallocGather):
        def free(self, seq):
            outputs.append(seq.output_ids)
            super().free(seq)

    panel = a_panel(Mine)
    panel.start()
    assert panel.wait(LONG)
    prompts = live_run.random_prompts(small, 2, 4)
    assert outputs == reference_generate(small, prompts, SIZES["max_new_tokens"])


def test_the_numbers_shown_are_the_runs_own(small: GPT2):
    panel = a_panel(NaiveCat, max_new_tokens=40)
    panel.start()
    assert panel.wait(LONG)
    steps = panel.run.lanes["s01_naive_cat"].steps
    assert len(steps) == 39 and set(steps[0].phases) == {"build", "forward", "append"}
    step = median(s.seconds for s in steps)
    share = decode_floor(small.config, [4 + 20] * 2, torch.float32, MACHINE).seconds / step  # 24 tokens in the middle
    html = panel._table._repr_html_()
    assert rows(html)["▶ s01_naive_cat"] == [f"{1e3 * step:.2f}", f"{2 / step:,.0f}", f"{share:.1%}"]


def test_phases_divide_the_median_step_as_they_do_all_steps():
    lane = a_lane("uneven", [1.0, 2.0, 90.0])
    assert lane.phase_seconds() == pytest.approx({"forward": 1e-3, "my.span": 0.2e-3, "unlabelled": 0.8e-3})
    lane.steps[2] = Step(7e-3, {"forward": 7e-3})
    assert lane.phase_seconds()["forward"] == pytest.approx(2e-3 * 8.5 / 10)


def test_blocks_are_counted_while_they_are_held():
    held = []
    settings = RunSettings((NaiveCat,), "small", 2, 60, 10, "float32")
    run = LiveRun(settings, lambda run: held.append(run.current and run.current.blocks_held), Ticking(1.0))
    run.start()
    assert run.wait(LONG)
    # None until there is a stage; then each prompt takes a block, the 65th cached token one more; in the end all free.
    assert [count for i, count in enumerate(held) if i == 0 or held[i - 1] != count] == [None, 1, 2, 4, 0]


# the baseline


def a_lane(name: str, milliseconds: list[float]) -> Lane:
    steps = [Step(1e-3 * ms, {"forward": 0.5e-3 * ms, "my.span": 0.1e-3 * ms}) for ms in milliseconds]
    return Lane(name, "its settings", 2, 4, 99, 8, lambda context_len: 1e-5 * context_len, steps=steps)


def a_run(*lanes: Lane) -> LiveRun:
    run = LiveRun(RunSettings((NaiveCat,), "small", 2, 4, 100, "float32"), lambda run: None)
    run.machine, run.lanes, run.current = MACHINE, {lane.name: lane for lane in lanes}, lanes[-1]
    return run


def test_a_finished_stage_is_compared_with_the_baseline_by_the_speeds_that_are_shown():
    baseline = a_lane("before", [8.0] * 60 + [80.0] * 39)
    now, done = a_lane("now", [4.0] * 20), a_lane("done", [40.0] * 99)
    shown_rows = rows(table(a_run(done, now), baseline))
    assert shown_rows == {
        "stage": ["step ms", "tok/s", "of the floor", "against baseline"],
        "baseline: before": ["8.00", "250", "6.8%", ""],
        "done": ["40.00", "50", "1.4%", "×0.20"],
        "▶ now": ["4.00", "500", "3.5%", ""],
    }


def test_a_pinned_baseline_goes_on_as_it_was():
    lane = a_lane("before", [8.0] * 3)
    pinned = lane.pinned()
    lane.steps += [Step(1e-3, {})] * 9
    assert (pinned.tokens_per_second(), lane.tokens_per_second()) == (250.0, 2000.0)
    first = rows(table(a_run(a_lane("now", [4.0])), pinned))["baseline: before"]
    assert first == rows(table(a_run(a_lane("now", [4.0] * 50)), pinned))["baseline: before"]


def test_the_chart_has_the_phases_of_each_stage_and_its_speed_from_step_to_step():
    baseline, now = a_lane("before", [8.0] * 20), a_lane("now", [4.0] * 5)
    chart = RunChart()
    chart.show(rows_of(a_run(now), baseline), baseline)
    data = chart.spec["datasets"]
    assert [(row["stage"], row["phase"], row["ms"]) for row in data["phases"]] == [
        (stage, phase, pytest.approx(ms))
        for stage, step in (("baseline: before", 8.0), ("▶ now", 4.0))
        for phase, ms in (("forward", step / 2), ("my.span", step / 10), ("unlabelled", step * 0.4))
    ]
    assert chart._palette["domain"][-1] == "my.span"
    lines = {(row["stage"], row["baseline"]): row for row in data["speeds"]}
    assert [(*line, row["step"], row["speed"]) for line, row in lines.items()] == [
        ("baseline: before", True, 17, 250.0),
        ("▶ now", False, 5, 500.0),
    ]
    assert chart.png.startswith(b"\x89PNG")


def test_the_baseline_is_there_while_the_next_batch_begins():
    run = a_run(a_lane("done", [4.0] * 99), a_lane("now", []))
    assert rows(table(run, a_lane("before", [8.0] * 99)))["done"][-1] == "×2.00"


def test_a_baseline_that_was_pinned_before_its_end_is_compared_with_nothing():
    """Its steps had shorter contexts."""
    assert rows(table(a_run(a_lane("done", [4.0] * 99)), a_lane("before", [8.0] * 98)))["▶ done"][-1] == ""


def test_pin_takes_the_latest_whole_batch_while_the_next_one_runs():
    panel = a_panel(NaiveCat)
    panel.start()
    assert panel.wait(LONG)
    whole = panel.run.current
    panel.run.current = a_lane("s01_naive_cat", [1.0])
    panel.pin()
    assert panel.baseline.steps == whole.steps and panel.baseline.finished


def test_pin_takes_the_latest_batch_and_keeps_it():
    panel = a_panel(NaiveCat)
    panel.pin()
    assert shown(panel.message) == NOTHING_TO_PIN and panel.baseline is None
    panel.start()
    assert panel.wait(LONG)
    panel.pin()
    pinned = panel.baseline
    assert pinned.steps == panel.run.lanes["s01_naive_cat"].steps and "baseline: s01_naive_cat" in results(panel)
    panel.stages.options, panel.stages.value = [("s03", SelectAppend)], (SelectAppend,)
    panel.start()
    assert panel.wait(LONG)
    assert panel.baseline is pinned
    speeds = [lane.tokens_per_second() for lane in (panel.run.current, pinned)]
    assert rows(panel._table._repr_html_())["▶ s03_select_append"][-1] == f"×{speeds[0] / speeds[1]:.2f}"
    assert "model small, batch 2, prompt 4, 6 new tokens, float32, as it stood when it was pinned" in results(panel)


def test_a_stage_whose_times_say_nothing_says_so():
    lane = a_lane("slow", [4.0])
    lane.caveat = "it runs in an interpreter"
    assert "slow: it runs in an interpreter" in shown(table(a_run(lane), None))
