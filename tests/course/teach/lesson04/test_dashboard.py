"""The dashboard: what it shows is what the run recorded, and it ends when it is asked to, whatever its stages do."""

from __future__ import annotations

import re
import threading
from html import unescape

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from course import teach
from course.teach.lesson04 import dashboard_chart, dashboard_panel, live_run
from course.teach.lesson04.dashboard import Dashboard, dashboard
from course.teach.lesson04.dashboard_panel import IDLE
from course.teach.lesson04.live_batch import Lane, Step, phase_seconds, step_spans
from roseinfer.display.chart import VEGA_LITE
from roseinfer.models import GPT2, load_model
from roseinfer.profiling import Machine, span
from roseinfer.profiling.spans import listening
from stages import NaiveCat, PreallocGather

pytestmark = pytest.mark.slow
MACHINE = Machine("A machine", "cpu", torch.float32, read_bytes_per_s=1e9, flops_per_s=1e11, samples={})
LONG = 60  # seconds to wait for a thread that takes a fraction of one: only a deadlock takes longer
CELLS = [
    """\
import torch

from course import teach
from course.teach.lesson04 import live_run
from roseinfer.profiling import Machine
from stages import NaiveCat, PreallocGather

machine = Machine("A machine", "cpu", torch.float32, read_bytes_per_s=1e9, flops_per_s=1e11, samples={})
live_run.measure_machine = lambda device, dtype: machine

class Mine(PreallocGather):
    "A learner's own class"

panel = teach.dashboard([NaiveCat, Mine], batch_size=2, max_new_tokens=40)
panel.stages.value = (NaiveCat, Mine)
panel""",
    "panel.start()",
    """\
from time import sleep
while len(panel.run.shown) < 2:
    sleep(0.01)
print('both decode')""",
    "panel.stop(); print(panel.run.wait(60), panel.run.status)",
]


@pytest.fixture(autouse=True)
def on_a_known_machine(monkeypatch, small: GPT2):
    """The spec "small" names the tests' own model; the floor is that of MACHINE."""
    monkeypatch.setattr(
        live_run, "load_model", lambda spec, *args: small if spec == "small" else load_model(spec, *args)
    )
    monkeypatch.setattr(live_run, "measure_machine", lambda device, dtype: MACHINE)


def a_panel(*stages, **changes) -> Dashboard:
    sizes = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 6}
    panel = dashboard(stages or NaiveCat, "small", **sizes | changes)
    panel.stages.value = panel._settings.stages
    return panel


def shown(html: str) -> str:
    """The readable text of HTML, a space between its pieces."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)).split())


def test_the_repr_says_what_it_was_made_with_and_nothing_runs():
    panel = dashboard([NaiveCat, PreallocGather], batch_size=2)
    assert repr(panel) == "Dashboard(2 stages, model tiny, batch 2, prompt 16, 128 new tokens, float32)"
    assert repr(teach.dashboard(NaiveCat)).startswith("Dashboard(s01_naive_cat, model tiny, batch 8, ")
    panel.stop()
    assert (panel.run, panel.live.value, panel.stages.value) == (None, IDLE, (NaiveCat,))


BAD = [
    ("stages", [], "stages must be a list of Stage classes"),
    ("model", "", "model must be a spec such as 'tiny', got ''"),
    ("batch_size", 0, "batch_size must be an integer of at least 1, got 0"),
    ("prompt_len", 1.5, "prompt_len must be an integer of at least 1, got 1.5"),
    ("max_new_tokens", 1, "max_new_tokens must be an integer of at least 2, got 1"),
    ("dtype", "float64", "dtype must be one of float32, float16, bfloat16, got 'float64'"),
]


@pytest.mark.parametrize(("field", "value", "says"), BAD, ids=[field for field, *_ in BAD])
def test_bad_arguments_are_refused(field, value, says):
    with pytest.raises(ValueError, match=says):
        dashboard(**{"stages": [NaiveCat], field: value})


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [("stages", (), "stages: choose at least one"), ("batch_size", -1, "batch_size must be an integer of at least 1")],
    ids=["stages", "batch_size"],
)
def test_a_bad_choice_is_told_before_anything_runs(field, value, says):
    panel = a_panel()
    getattr(panel, field).value = value
    panel.start()
    assert says in shown(panel.live.value) and panel.run is None


def test_what_only_the_model_can_refuse_is_told_in_the_panel():
    panel = a_panel(max_new_tokens=189)
    panel.start()
    assert panel.run.wait(LONG)
    says = "prompt_len=4 + max_new_tokens=189 is 193 tokens, allowed: max_model_len=192"
    assert says in shown(panel.live.value) and panel.run.status == "failed"


def test_in_a_notebook_other_cells_run_meanwhile_and_nothing_leaks_into_them():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=LONG, kernel_name="python3", store_widget_state=False).execute()
    panel, start, other, stop = (cell.outputs for cell in notebook.cells)
    contract = "Dashboard(2 stages, model tiny, batch 2, prompt 16, 40 new tokens, float32)"
    assert [output.data["text/plain"] for output in panel] == [contract, dashboard_panel.TEXT, dashboard_chart.TEXT]
    assert "tok/s" in panel[1].data["text/html"] and panel[2].data[VEGA_LITE]["datasets"]["speeds"]
    assert start == []
    assert [output.text for output in other] == ["both decode\n"]
    assert [output.text for output in stop] == ["True stopped\n"]


def test_an_error_in_a_stage_is_told_with_its_traceback():
    class Broken(NaiveCat):
        name = "<b>roken"

        def append(self, seqs, step):
            raise IndexError("list index out of range")

    panel = a_panel(Broken)
    panel.start()
    assert panel.run.wait(LONG)
    told = shown(panel.live.value)
    assert told.startswith("failed: <b>roken, decode step 0 of 5 ContenderFailed: <b>roken failed in decode step 0")
    assert "in append raise IndexError" in told


def test_a_new_start_ends_the_run_that_is_under_way():
    reached, go_on = threading.Event(), threading.Event()

    class Waiting(NaiveCat):
        def build(self, seqs):
            reached.set()
            assert go_on.wait(LONG)
            return super().build(seqs)

    first, second = a_panel(Waiting), a_panel()
    first.start()
    assert reached.wait(LONG)
    second.start()
    go_on.set()
    assert first.run.wait(LONG) and first.run.status == "stopped"
    second.stop()
    assert second.run.wait(LONG) and second.run.status == "stopped"


def a_lane(milliseconds: list[float]) -> Lane:
    steps = [Step(1e-3 * ms, {"forward": 0.5e-3 * ms, "my.span": 0.1e-3 * ms}) for ms in milliseconds]
    return Lane("mine", 2, 4, 99, lambda context_len: 1e-5 * context_len, "it runs in an interpreter", steps)


def test_the_numbers_are_those_of_the_median_step():
    lane = a_lane([1.0, 2.0, 90.0])
    assert lane.phase_seconds() == pytest.approx({"forward": 1e-3, "my.span": 0.2e-3, "unlabelled": 0.8e-3})
    assert (lane.tokens_per_second(), lane.floor_share()) == pytest.approx((1000.0, 1e-5 * 6 / 2e-3))
    panel = a_panel()
    panel.start()
    panel.stop()
    assert panel.run.wait(LONG)
    run = panel.run
    run.machine, run.lanes, run.current = MACHINE, {"mine": lane}, lane
    panel._on_report(run)
    table = shown(panel._table._repr_html_())
    assert "▶ mine 2.00 1,000 3.0%" in table and "mine: it runs in an interpreter" in table
    data = panel._chart.spec["datasets"]
    assert [(row["phase"], row["ms"]) for row in data["phases"]] == [
        ("forward", pytest.approx(1.0)),
        ("my.span", pytest.approx(0.2)),
        ("unlabelled", pytest.approx(0.8)),
    ]
    assert data["speeds"] == [{"stage": "mine", "step": 1, "speed": 2000.0}]
    assert panel._chart.png.startswith(b"\x89PNG")


def test_phases_are_the_spans_right_inside_a_step():
    spans = step_spans()
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
    assert list(phase_seconds(spans.take())) == ["build", "forward", "my.append"]
    assert spans.take() == []
