"""The climb: each stage is timed once, speeds are kept by machine and code, and the chart says what it shows."""

from __future__ import annotations

import json

import nbformat
import pytest
import torch

from course.teach.climbing import climb as climbing
from course.teach.climbing import speeds
from course.teach.climbing.chart import ClimbChart, Side, gained
from course.teach.climbing.climb import climb, recorded_climb, recorded_sides
from course.teach.climbing.speeds import Speed
from roseinfer.bench.settings import HF_NAME
from roseinfer.display.chart import VEGA_LITE
from roseinfer.engine.as_stage import EngineStage
from roseinfer.paths import ROOT
from stages import LADDER, FewLaunches, NaiveCat, SelectAppend, TritonPaged

CPU = torch.device("cpu")
NAIVE, FAST = Speed("s01_naive_cat", 100.0, 90.0, 110.0), Speed("s09_numba_paged", 400.0, 390.0, 410.0)
ENGINE, HF = Speed("engine", 1000.0, 990.0, 1010.0), Speed(HF_NAME, 50.0, 49.0, 51.0)
SIDE = Side("this machine: a workload", [NAIVE, FAST, ENGINE], HF, 10_000.0)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "climb.jsonl"
    monkeypatch.setenv(speeds.PLACE, str(path))
    return path


@pytest.fixture
def small(monkeypatch):
    """The same climb with a workload that takes no time."""
    for name, value in {"BATCH_SIZE": 2, "PROMPT_LEN": 3, "MAX_NEW_TOKENS": 4, "REPEATS": 1}.items():
        monkeypatch.setattr(climbing, name, value)


@pytest.fixture
def timed(small, monkeypatch):
    """Names of the stages of every measurement."""
    calls, measure = [], climbing._measure

    def spy(model, stages, with_hf):
        calls.append([stage.name for stage in stages] + [HF_NAME] * with_hf)
        return measure(model, stages, with_hf)

    monkeypatch.setattr(climbing, "_measure", spy)
    return calls


def names(chart):
    return [row.name for row in chart.sides[0].rows]


@pytest.mark.slow
def test_each_stage_is_timed_once(timed):
    first = climb(NaiveCat)
    assert names(first) == ["s01_naive_cat", "engine"] and repr(first) == "the climb to s01_naive_cat"
    third = climb(SelectAppend)
    assert names(third) == ["s01_naive_cat", "s02_prealloc_gather", "s03_select_append", "engine"]
    again = climb(SelectAppend)
    assert timed == [["s01_naive_cat", "engine", HF_NAME], ["s02_prealloc_gather", "s03_select_append"]]
    assert again.sides[0] == third.sides[0]
    assert all(row.slowest <= row.tokens_per_second <= row.fastest for row in third.sides[0].rows)


@pytest.mark.slow
def test_a_stage_that_cannot_be_timed_here_is_named_with_its_reason(timed):
    chart = climb(TritonPaged)
    assert TritonPaged.name not in names(chart) and TritonPaged.name not in timed[0]
    [subtitle] = [chart.spec["vconcat"][0]["title"]["subtitle"]]
    assert any(TritonPaged.name in line and "left out" in line for line in subtitle)


@pytest.mark.slow
def test_what_a_busy_machine_made_unsteady_is_timed_again(timed):
    climb(NaiveCat)
    under = speeds.key(CPU, LADDER)
    speeds.keep(under, [Speed("engine", 100.0, 50.0, 150.0), Speed(NaiveCat.name, 100.0, 90.0, 110.0)])
    speeds.keep(under, [Speed(HF_NAME, 100.0, 99.0, 100.0), Speed(climbing.FLOOR, 9.0, 9.0, 9.0)])
    climb(NaiveCat)
    assert timed[1:] == [["engine"]]


def test_where_nothing_is_timed_the_recorded_climb_is_shown(timed, monkeypatch):
    monkeypatch.setenv(speeds.PLACE, speeds.RECORDED)
    chart = climb(SelectAppend)
    assert timed == [] and repr(chart) == "the climb to s03_select_append"
    assert names(chart) == ["s01_naive_cat", "s02_prealloc_gather", "s03_select_append", "engine"]


def test_only_a_stage_of_the_course_climbs():
    with pytest.raises(ValueError, match="stage must be one of the package `stages`.*got EngineStage"):
        climb(EngineStage)


def test_speeds_are_kept_by_key(place):
    speeds.keep("one", [NAIVE, FAST])
    speeds.keep("two", [Speed(NAIVE.name, 1.0, 1.0, 1.0)])
    speeds.keep("one", [later := Speed(NAIVE.name, 101.0, 99.0, 103.0)])
    assert speeds.kept("one") == {NAIVE.name: later, FAST.name: FAST}
    assert speeds.kept("three") == {}


@pytest.mark.parametrize("damage", ["{", "[]", "3", '{"key": "one"}', '{"key": "one", "name": "x", "slowest": null}'])
def test_a_damaged_line_loses_no_other(place, damage):
    speeds.keep("one", [NAIVE])
    with place.open("a", encoding="utf-8") as file:
        file.write(f"\n{damage}")
    speeds.keep("one", [FAST])
    assert list(speeds.kept("one")) == [NAIVE.name, FAST.name]


def test_a_file_that_cannot_be_written_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(speeds.PLACE, str(tmp_path / "file" / "climb.jsonl"))
    with pytest.warns(UserWarning, match="speeds of the climb are not kept.*ROSEINFER_CLIMB"):
        speeds.keep("one", [NAIVE])
    assert speeds.kept("one") == {}


def test_the_key_says_machine_torch_and_code(monkeypatch):
    key = speeds.key(CPU, LADDER)
    assert key == speeds.key(CPU, LADDER) and f"torch {torch.__version__}" in key
    monkeypatch.setattr(speeds, "ROOMS", ("stage.py",))
    assert speeds.key(CPU, LADDER) != key


def test_the_sentence_is_computed():
    assert (
        gained(SIDE, "s09_numba_paged")
        == "s09_numba_paged decodes 4.0 times as many tokens per second as s01_naive_cat"
    )
    alone = Side("here", [NAIVE, ENGINE], HF, 1.0)
    assert (
        gained(alone, "s01_naive_cat")
        == "s01_naive_cat is the first step of the climb; the engine is 10.0 times as fast"
    )


def test_the_chart_lights_the_lessons_stage_and_tells_its_numbers():
    chart = ClimbChart([SIDE], "text", FAST.name)
    numbers = "s01_naive_cat 100, s09_numba_paged 400, engine 1,000, HF generate 50; floor 10,000"
    assert chart.alt == f"tok/s, this machine: a workload: {numbers}"
    bars = chart.spec["vconcat"][0]["layer"][0]["data"]["values"]
    assert [row["kind"] for row in bars] == ["so far", "this lesson", "the goal"]
    assert [row["number"] for row in bars] == ["100, 1.0% of floor", "400, 4.0% of floor", "1,000, 10.0% of floor"]
    assert chart.png.startswith(b"\x89PNG")


def test_the_recorded_climb_is_the_whole_one():
    chart = recorded_climb()
    assert names(chart) == [*(stage.name for stage in LADDER if stage not in (TritonPaged, FewLaunches)), "engine"]
    assert repr(chart) == "the whole climb, recorded"


def test_the_first_lesson_shows_the_climb_as_data_has_it():
    cells = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4).cells
    [cell] = [cell for cell in cells if cell.cell_type == "code" and "teach.recorded_climb(" in cell.source]
    assert cell.outputs[0].data[VEGA_LITE] == json.loads(json.dumps(recorded_climb().spec)), (
        "record it again after data/climb.json"
    )


def test_a_gpus_record_stands_beside_this_machine(tmp_path):
    record = json.loads((climbing.DATA / climbing.RECORDED).read_text(encoding="utf-8"))
    folder = tmp_path / "runs" / "some-gpu"
    folder.mkdir(parents=True)
    (folder / climbing.RECORDED).write_text(json.dumps(record | {"device": "Some GPU"}))
    [side] = recorded_sides("s03_select_append", tmp_path)
    assert side.where.startswith("recorded on Some GPU")
    assert [row.name for row in side.rows] == ["s01_naive_cat", "s02_prealloc_gather", "s03_select_append", "engine"]
    (folder / climbing.RECORDED).write_text("{}")
    with pytest.raises(ValueError, match="must be what `roseinfer ladder --output` wrote"):
        recorded_sides("", tmp_path)
