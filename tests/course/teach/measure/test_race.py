"""race: live bars where there is a notebook, the ladder's result everywhere. Nothing here depends on time."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from course.display.speed_bars import SpeedBars
from course.teach.measure.race import Race, race
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.display.chart import VEGA_LITE
from roseinfer.models import GPT2
from roseinfer.profiling.progress import RunProgress
from stages import NaiveCat, PreallocGather

pytestmark = pytest.mark.slow


SIZES = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 4, "repeats": 1}

CELL = """\
import sys
sys.path.insert(0, "tests")
from oracles import small_model
from course.teach.measure.race import race
from stages import NaiveCat, PreallocGather

class Mine(PreallocGather):
    "A learner's own class"

race([NaiveCat, Mine], small_model(), batch_size=2, prompt_len=4, max_new_tokens=4, repeats=1)
"""

RESULT = """\
2 sequences, prompt of 4 tokens, 4 new tokens each, float32
stage          copies  cats  selects  bytes copied  tokens
-------------  ------  ----  -------  ------------  ------
s01_naive_cat      16     8       32        17,408  equal
Mine               16     4       32        12,288  equal"""


def a_race(now: list[float]) -> Race:
    return Race(["one", "two"], clock=lambda: now[0])


def bars(lanes: Race) -> dict[str, float]:
    return {row["name"]: row["speed"] for row in lanes.chart.spec["datasets"]["bars"]}


def test_without_a_notebook_the_result_comes_alone(small: GPT2, capsys):
    result = race([NaiveCat, PreallocGather], small, **SIZES)
    assert isinstance(result, LadderResult)
    assert [row["stage"] for row in result.rows] == ["s01_naive_cat", "s02_prealloc_gather"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.nightly
def test_in_a_notebook_the_plain_text_is_the_same_every_time():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=60, kernel_name="python3", store_widget_state=False).execute()
    shown, returned = notebook.cells[0].outputs
    assert (shown.output_type, shown.data["text/plain"]) == ("display_data", "Race(s01_naive_cat, Mine)")
    bars = shown.data[VEGA_LITE]["datasets"]["bars"]
    assert [bar["name"] for bar in bars] == ["s01_naive_cat", "Mine"] and all(bar["speed"] > 0 for bar in bars)
    assert "image/png" in shown.data and "floor" in shown.metadata["image/png"]["alt"]
    assert (returned.output_type, returned.data["text/plain"]) == ("execute_result", RESULT)
    assert "tok/s" in returned.data["text/html"]


def test_bars_show_the_speed_so_far():
    lanes = a_race([0.0])
    lanes.update(RunProgress("repeat 1 of 2", "one", 0, tokens=100, seconds=1.0, finished=True))
    lanes.update(RunProgress("repeat 1 of 2", "two", 0, tokens=400, seconds=1.0, finished=True))
    assert bars(lanes) == {"one": 100, "two": 400}
    lanes.update(RunProgress("repeat 2 of 2", "one", 1, tokens=300, seconds=1.0, finished=True))
    assert lanes.speeds == bars(lanes) == {"one": 200, "two": 400}
    ranges = {row["name"]: (row["low"], row["high"]) for row in lanes.chart.spec["datasets"]["bars"]}
    assert ranges == {"one": (100, 300), "two": (400, 400)}


def test_warm_up_runs_move_no_bar():
    lanes = a_race([0.0])
    lanes.update(RunProgress("warm-up", "one", -1, tokens=100, seconds=1.0, finished=True))
    assert lanes.speeds == {"one": 0, "two": 0}
    assert lanes.chart.spec["title"] == "warm-up: one"


def test_bars_are_redrawn_a_few_times_a_second_at_most():
    now = [0.0]
    lanes = a_race(now)
    running = RunProgress("repeat 1 of 2", "one", 0, tokens=100, seconds=1.0)
    lanes.update(running)
    assert bars(lanes) == {"one": 0, "two": 0}
    now[0] = 0.5
    lanes.update(running)
    assert bars(lanes) == {"one": 100, "two": 0}


def test_the_repr_is_stable_and_an_error_is_told():
    lanes = Race(["<b>mine</b>", "two"])
    assert repr(lanes) == "Race(<b>mine</b>, two)" == lanes._repr_mimebundle_()[0]["text/plain"]
    lanes.stop(KeyboardInterrupt())
    assert lanes.chart.spec["title"] == "stopped: KeyboardInterrupt"


def test_a_floor_far_beyond_the_bars_is_named_and_not_drawn_at_a_speed_that_it_has_not():
    bars = SpeedBars(["one"], "text")
    near, far = "floor (dashed): 120 tok/s", "floor, 50 times the fastest run: 5,000 tok/s →"
    for floor, beyond, end, label in ((120.0, False, 120.0, near), (5000.0, True, 100.0, far)):
        bars.show("title", {"one": (90.0, 80.0, 100.0)}, floor)
        assert bars.spec["datasets"]["floor"] == [{"speed": floor, "beyond": beyond, "label": label}]
        assert [param["value"] for param in bars.spec["params"] if param["name"] == "most"] == [end]
        assert bars.alt == f"title. tok/s: one 90 (80 to 100); {label}"


def test_a_broken_class_is_named(small: GPT2):
    class Broken(NaiveCat):
        def build(self, seqs):
            return None

    with pytest.raises(ContenderFailed, match="^Broken failed in decode step 0: TypeError: 'NoneType'"):
        race([NaiveCat, Broken], small, **SIZES)


def test_arguments_are_refused_as_in_the_ladder(small: GPT2):
    for stages, message in ((["s01"], "must hold Stage classes"), (NaiveCat, "must be a list of Stage classes")):
        with pytest.raises(ValueError, match=message):
            race(stages, small, **SIZES)
