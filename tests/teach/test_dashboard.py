"""The dashboard: what it shows is what the run recorded, and however a run ends, nothing stays held. No real times."""

from __future__ import annotations

import re
import threading
from html import unescape
from itertools import pairwise

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from roseinfer import teach
from roseinfer.bench import ContenderFailed
from roseinfer.display.chart import VEGA_LITE
from roseinfer.models import GPT2, load_model
from roseinfer.profiling import Machine, decode_floor, span
from roseinfer.profiling.spans import listening
from roseinfer.reference import reference_generate
from roseinfer.teach.views import live_run
from roseinfer.teach.views.dashboard import ALREADY, NOTHING_TO_PIN, Dashboard, dashboard
from roseinfer.teach.views.dashboard_chart import TEXT, RunChart
from roseinfer.teach.views.dashboard_panel import IDLE, render, rows_of
from roseinfer.teach.views.live_batch import RECENT, Lane, Step, phase_seconds, step_spans
from roseinfer.teach.views.live_run import REPORT_SECONDS, LiveRun, RunSettings
from stages import BlockTableCache, NaiveCat, PreallocGather, SelectAppend
from tools.dashboard_overhead import overhead, summary

SIZES = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 6}
MACHINE = Machine("A machine", "cpu", torch.float32, read_bytes_per_s=1e9, flops_per_s=1e11, samples={})
LONG = 60  # seconds to wait for a thread that takes a fraction of one: only a deadlock takes longer

CELLS = [
    """\
from roseinfer import teach
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


class Ticking:
    """A clock that moves by `tick` seconds whenever it is read."""

    def __init__(self, tick: float) -> None:
        self.now = 0.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Made(NaiveCat):
    """Keeps every stage that was made."""

    made: list[NaiveCat] = []

    def __init__(self, *args, **sizes) -> None:
        super().__init__(*args, **sizes)
        Made.made.append(self)


@pytest.fixture(autouse=True)
def on_a_known_machine(monkeypatch, small: GPT2):
    """The spec "small" names the tests' own model; the floor is that of MACHINE; no thread outlives a test."""

    def load(spec, *args):
        return small if spec == "small" else load_model(spec, *args)

    monkeypatch.setattr(live_run, "load_model", load)
    monkeypatch.setattr(live_run, "measure_machine", lambda device, dtype: MACHINE)
    monkeypatch.setattr(Made, "made", [])
    yield
    if LiveRun._latest is not None:
        LiveRun._latest.stop()
        assert LiveRun._latest.wait(LONG)
    assert live_run.THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def a_panel(*stages, tick: float = 1e-3, **changes) -> Dashboard:
    settings = RunSettings(stages or (NaiveCat,), **{"model": "small", "dtype": "float32", **SIZES, **changes})
    panel = Dashboard(settings, clock=Ticking(tick))
    panel.stages.value = settings.stages
    return panel


def shown(html: str) -> str:
    """The readable text of HTML, a space between its pieces."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)).split())


def live(panel: Dashboard) -> str:
    return shown(panel._live.value)


def rows(html: str) -> dict[str, list[str]]:
    """The cells of each row of the table, by its first one."""
    table = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    return {unescape(cells[0]): cells[1:] for cells in table}


def assert_all_free() -> None:
    assert Made.made
    for stage in Made.made:
        stage.tables.check()
        assert stage.num_free_blocks == stage.tables.num_blocks


# the contract


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
    assert [output.data["text/plain"] for output in panel] == [contract, TEXT]
    assert panel[1].data[VEGA_LITE]["datasets"]["speeds"]
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
    recent = steps[-RECENT:]
    step = sum(s.seconds for s in recent) / RECENT
    phases = [sum(s.phases[name] for s in recent) / RECENT for name in ("build", "forward", "append")]
    floor = decode_floor(small.config, [4 + 39] * 2, torch.float32, MACHINE).seconds
    expected = [*(f"{1e3 * s:.2f}" for s in [*phases, step - sum(phases), step]), f"{2 / step:,.0f}"]
    assert rows(panel._live.value)["▶ s01_naive_cat"] == [*expected, f"{floor / step:.1%}"]


def test_blocks_are_counted_while_they_are_held():
    held = []
    settings = RunSettings((NaiveCat,), "small", 2, 60, 10, "float32")
    run = LiveRun(settings, lambda run: held.append(run.current and run.current.blocks_held), Ticking(1.0))
    run.start()
    assert run.wait(LONG)
    # None until there is a stage; then each prompt takes a block, the 65th cached token one more; in the end all free.
    assert [count for i, count in enumerate(held) if i == 0 or held[i - 1] != count] == [None, 1, 2, 4, 0]


# the end of a run


@pytest.mark.parametrize("moment", ["load", "make", "prefill 0", "prefill 1", "decode 0", "decode 3", "decode 4"])
def test_stop_frees_every_block_at_any_moment(monkeypatch, small: GPT2, moment):
    panel = a_panel(Made, repeat=True)

    def stop_at(now: str) -> None:
        if now == moment:
            panel.stop()

    def load(*args):
        stop_at("load")
        return small

    class Stopping(Made):
        def __init__(self, *args, **sizes):
            super().__init__(*args, **sizes)
            self.calls = {"prefill": 0, "decode": 0}
            stop_at("make")

        def count(self, call):
            stop_at(f"{call} {self.calls[call]}")
            self.calls[call] += 1

        def prefill(self, seq):
            self.count("prefill")
            return super().prefill(seq)

        def decode(self, seqs):
            self.count("decode")
            return super().decode(seqs)

    monkeypatch.setattr(live_run, "load_model", load)
    panel.stages.options, panel.stages.value = [("stopping", Stopping)], (Stopping,)
    panel.start()
    assert panel.wait(LONG)
    assert (panel.run.status, panel.run.error, panel.run.running) == ("stopped", None, False)
    assert panel.message == ""
    if moment != "load":
        assert len(Made.made) == 1, "the batch that was stopped is the last one"
        assert "every block is free" in live(panel)
        assert_all_free()
    assert (panel._start.disabled, panel._stop.disabled) == (False, True)


def test_a_second_start_is_refused_and_a_later_one_is_not():
    reached, go_on = threading.Event(), threading.Event()

    class Waiting(Made):
        def build(self, seqs):
            reached.set()
            assert go_on.wait(LONG)
            return super().build(seqs)

    panel = a_panel(Waiting)
    panel.start()
    assert reached.wait(LONG)
    first = panel.run
    panel.start()
    assert panel.run is first and shown(panel.message) == ALREADY
    assert (panel._start.disabled, panel._stop.disabled) == (True, False)
    go_on.set()
    assert panel.wait(LONG) and panel.message == ""
    panel.start()
    assert panel.run is not first and panel.wait(LONG)
    assert [run.status for run in (first, panel.run)] == ["finished", "finished"]
    assert_all_free()


def test_another_panels_start_ends_the_run_of_the_first():
    first, second = a_panel(Made, repeat=True), a_panel(Made)
    first.start()
    second.start()
    assert second.wait(LONG) and first.wait(LONG)
    assert (first.run.status, second.run.status) == ("stopped", "finished")
    assert_all_free()


def test_an_error_in_a_stage_is_told_and_everything_is_freed():
    class Broken(Made):
        name = "<b>roken"

        def append(self, seqs, step):
            if seqs[0].num_cached_tokens > 5:
                raise IndexError("list index out of range")
            super().append(seqs, step)

    panel = a_panel(Broken)
    panel.start()
    assert panel.wait(LONG)
    assert isinstance(panel.run.error, ContenderFailed)
    told = shown(panel.message)
    assert told.startswith("ContenderFailed: <b>roken failed in decode step 2: IndexError: list index out of range")
    assert "in append raise IndexError" in told
    assert "failed: <b>roken, decode step 2 of 5 blocks held: 0 of 2, every block is free" in live(panel)
    assert_all_free()
    panel.stages.options, panel.stages.value = [("whole", Made)], (Made,)
    panel.start()
    assert panel.wait(LONG) and panel.run.error is None and panel.message == ""


def test_a_stage_that_keeps_its_blocks_is_named():
    class Keeps(NaiveCat):
        def free(self, seq):
            pass

    panel = a_panel(Keeps)
    panel.start()
    assert panel.wait(LONG)
    assert "Keeps lost blocks: 0 of 2 are free with all sequences freed" in shown(panel.message)
    assert "blocks held: 2 of 2, 0 free" in live(panel)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("model", "random:gpt3", "unknown shape 'random:gpt3', allowed: random:gpt2"),
        ("model", "./nowhere", "no such folder: './nowhere'"),
        ("max_new_tokens", 189, "prompt_len=4 + max_new_tokens=189 is 193 tokens, allowed: max_model_len=192"),
    ],
    ids=["shape", "folder", "length"],
)
def test_what_only_the_model_can_refuse_is_told_in_the_panel(field, value, says):
    panel = a_panel()
    getattr(panel, field).value = value
    panel.start()
    assert panel.wait(LONG)
    assert says in shown(panel.message) and panel.run.status == "failed"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("stages", (), "stages: choose at least one"),
        ("model", " ", "model must be a spec such as 'tiny', got ''"),
        ("batch_size", -1, "batch_size must be an integer of at least 1, got -1"),
        ("prompt_len", 0, "prompt_len must be an integer of at least 1, got 0"),
        ("max_new_tokens", 1, "max_new_tokens must be an integer of at least 2, got 1"),
    ],
    ids=["stages", "model", "batch_size", "prompt_len", "max_new_tokens"],
)
def test_a_bad_choice_is_told_before_anything_runs(field, value, says):
    panel = a_panel()
    getattr(panel, field).value = value
    panel.start()
    assert (shown(panel.message), panel.run) == (says, None)


def test_a_closed_tab_holds_nothing_up():
    class Closing(Made):
        def build(self, seqs):
            panel._live.close()
            panel.close()
            return super().build(seqs)

    panel = a_panel(Closing)
    panel.start()
    assert panel.wait(LONG)
    assert (panel.run.status, panel.run.error) == ("finished", None)
    assert_all_free()


def test_an_interrupted_wait_stops_the_run(monkeypatch):
    panel = a_panel(Made, repeat=True)
    panel.start()

    def interrupted(timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(panel.run, "wait", interrupted)
        panel.wait()
    assert panel.wait(LONG) and panel.run.status == "stopped"
    if Made.made:  # the thread may not have come to that
        assert_all_free()


# how often it is redrawn


def report_times(tick: float) -> tuple[list[float], int]:
    """When a run of 180 new tokens was drawn, and its decode steps."""
    clock, times = Ticking(tick), []
    settings = RunSettings((NaiveCat,), "small", 2, 4, 180, "float32")
    run = LiveRun(settings, lambda run: times.append(clock.now), clock)
    run.start()
    assert run.wait(LONG) and run.error is None
    return times, len(run.current.steps)


@pytest.mark.parametrize("tick", [1e-3, 5e-3, 1e-2])
def test_at_least_four_updates_a_second_and_never_one_a_step(tick):
    times, steps = report_times(tick)
    assert all(late - early <= 0.25 for early, late in pairwise(times))
    assert all(late - early >= REPORT_SECONDS / 2 for early, late in pairwise(times[2:-1]))
    assert len(times) < steps


def test_slow_steps_are_each_shown():
    times, steps = report_times(1.0)
    assert len(times) >= steps


# the baseline


def a_lane(name: str, milliseconds: list[float]) -> Lane:
    steps = [Step(1e-3 * ms, {"forward": 0.5e-3 * ms, "my.span": 0.1e-3 * ms}) for ms in milliseconds]
    return Lane(name, "its settings", 2, 4, 99, 8, lambda context_len: 1e-5 * context_len, steps=steps)


def a_run(*lanes: Lane) -> LiveRun:
    run = LiveRun(RunSettings((NaiveCat,), "small", 2, 4, 100, "float32"), lambda run: None)
    run.machine, run.lanes, run.current = MACHINE, {lane.name: lane for lane in lanes}, lanes[-1]
    return run


def test_the_baseline_is_compared_at_the_same_step():
    baseline = a_lane("before", [8.0] * 20 + [80.0] * 20)
    now, done = a_lane("now", [4.0] * 20), a_lane("done", [40.0] * 40)
    shown_rows = rows(render(a_run(done, now), baseline))
    # stage: build, forward, append, my.span, unlabelled, step, tok/s, of the floor, baseline tok/s, against it
    assert shown_rows["▶ now"] == ["", "2.00", "", "0.40", "1.60", "4.00", "500", "6.0%", "250", "×2.00"]
    assert shown_rows["done"] == ["", "20.00", "", "4.00", "16.00", "40.00", "50", "1.1%", "25", "×2.00"]
    assert shown_rows["baseline: before"] == ["", "4.00", "", "0.80", "3.20", "8.00", "250", "3.0%", "", ""]
    assert list(shown_rows)[:2] == ["stage", "baseline: before"]


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
        ("baseline: before", True, 17, 250.0), ("▶ now", False, 5, 500.0),
    ]  # fmt: skip
    assert chart.png.startswith(b"\x89PNG")


def test_a_shorter_baseline_is_compared_by_its_end():
    shown_rows = rows(render(a_run(a_lane("now", [4.0] * 40)), a_lane("before", [8.0] * 3)))
    assert shown_rows["▶ now"][-2:] == ["250", "×2.00"]


def test_the_baseline_is_there_while_the_next_batch_begins():
    now = a_lane("now", [])
    assert rows(render(a_run(a_lane("done", [4.0]), now), a_lane("before", [8.0])))["done"][-1] == "×2.00"


def test_pin_takes_the_latest_batch_and_keeps_it():
    panel = a_panel(NaiveCat)
    panel.pin()
    assert shown(panel.message) == NOTHING_TO_PIN and panel.baseline is None
    panel.start()
    assert panel.wait(LONG)
    panel.pin()
    pinned = panel.run.lanes["s01_naive_cat"]
    assert panel.baseline is pinned and "baseline: s01_naive_cat" in live(panel)
    panel.stages.options, panel.stages.value = [("s03", SelectAppend)], (SelectAppend,)
    panel.start()
    assert panel.wait(LONG)
    assert panel.baseline is pinned
    speeds = [lane.tokens_per_second() for lane in (panel.run.current, pinned)]
    assert rows(panel._live.value)["▶ s03_select_append"][-1] == f"×{speeds[0] / speeds[1]:.2f}"
    assert "model small, batch 2, prompt 4, 6 new tokens, float32; each stage is compared" in live(panel)


def test_a_stage_whose_times_say_nothing_says_so():
    lane = a_lane("slow", [4.0])
    lane.caveat = "it runs in an interpreter"
    assert "slow: it runs in an interpreter" in shown(render(a_run(lane), None))


# what a listener hears


class Heard(list):
    def enter(self, name):
        self.append(name)

    def exit(self, name):
        self.append(f"end of {name}")


def test_a_listener_hears_spans_inside_each_other_and_those_that_fail():
    heard = Heard()
    with span("before"):
        pass
    with listening(heard):
        with pytest.raises(RuntimeError), span("outer"), span("inner"):
            raise RuntimeError
        with span("next"):
            pass
    with span("after"):
        pass
    assert heard == ["outer", "inner", "end of inner", "end of outer", "next", "end of next"]


def test_another_threads_spans_are_not_heard():
    heard = Heard()

    def work():
        with span("theirs"):
            pass

    with listening(heard):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert heard == []


def test_phases_are_the_spans_right_inside_a_step():
    spans = step_spans(Ticking(1.0))
    with listening(spans):
        with span("roseinfer.prefill"), span("roseinfer.model.forward"):
            pass
        with span("roseinfer.decode_step_sessions.total"):
            with span("roseinfer.decode_step_sessions.build_block_tables"):
                pass
            with span("roseinfer.decode_step_sessions.h2d_block_tables"):
                pass
            with span("roseinfer.model.forward"), span("my.attention"):
                pass
            with span("my.append"):
                pass
    assert phase_seconds(spans.take()) == {"build": 2.0, "forward": 1.0, "my.append": 1.0}
    assert spans.take() == []


# what it costs


def test_the_overhead_is_measured_in_turn_and_its_samples_are_kept(capsys):
    measured = overhead("s03", "tiny", 2, 4, 6, repeats=2, cpu_time=False)
    samples = measured["samples"]
    assert [sample["name"] for sample in samples] == ["alone", "dashboard", "dashboard", "alone"]
    assert {sample["steps"] for sample in samples} == {4}, "the first of the 5 decode steps is left out"
    assert measured["summary"] == summary(samples)


def test_the_slowdown_is_that_of_the_medians():
    alone = [{"name": "alone", "seconds": seconds} for seconds in (1.0, 2.0, 9.0)]
    watched = [{"name": "dashboard", "seconds": seconds, "redraws": [0.1, 0.1]} for seconds in (2.0, 2.5, 4.0)]
    assert summary(alone + watched) == {
        "alone_seconds": 2.0, "dashboard_seconds": 2.5, "slowdown": 0.25, "redraw_share": 0.08,
        "redraws_per_second": 0.8,
    }  # fmt: skip
