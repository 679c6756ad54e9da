"""A recording says whether the machine was quiet; one that says it was not is refused, and the course has none."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course.display.speed_bars import SpeedBars
from course.teach.served.chart import ServedChart
from course.teach.served.kept import Served
from roseinfer.bench import neighbours
from roseinfer.display.chart import VEGA_LITE
from roseinfer.paths import ROOT
from tools import record
from tools.quiet import busy_signs, races

# What commands recorded. data/online is left out: runs under one name have different budgets there.
RUNS = [
    *sorted(ROOT.glob("data/offline/*.json")),
    *sorted(ROOT.glob("data/serving/*.json")),
]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def race_of(speeds, title="8 sequences", floor=10_000.0):
    """A cell with a finished race, as race() leaves it."""
    bars = SpeedBars(list(speeds), "Race()")
    bars.show(title, speeds, floor)
    data = {"text/plain": repr(bars), VEGA_LITE: bars.spec}
    return new_code_cell("teach.race(...)", outputs=[new_output("display_data", data=data)])


QUIET = {"s01_naive_cat": (100.0, 95.0, 105.0), "s02_prealloc_gather": (150.0, 140.0, 151.0)}


def signs(*cells):
    return busy_signs(new_notebook(cells=[new_code_cell("1 + 1"), *cells]))


def test_a_quiet_machine_shows_no_sign():
    twins = {"s01_naive_cat": (100.0, 95.0, 105.0), "Mine": (90.0, 88.0, 91.0)}
    assert signs(race_of(QUIET), race_of(twins, floor=11_000.0)) == []
    other_code = {"s19_speculative": (90.0, 88.0, 91.0), "engine": (105.0, 104.0, 106.0)}
    assert signs(race_of(other_code)) == []


@pytest.mark.parametrize(
    ("cells", "sign"),
    [
        ([race_of({**QUIET, "HF generate": (300.0, 24.0, 857.0)})], "Cell 1: runs of HF generate from 24 to 857 tok/s"),
        (
            [race_of({"s05_block_table": (100.0, 99.0, 101.0), "MyPaged": (27.0, 26.0, 28.0)})],
            "Cell 1: the same code twice, s05_block_table 100 tok/s and MyPaged 27 tok/s",
        ),
        (
            [race_of(QUIET), race_of(QUIET, floor=16_000.0)],
            "floors of one shape (8 sequences) from 10,000 to 16,000 tok/s",
        ),
    ],
    ids=["spread", "twins", "floors"],
)
def test_a_busy_one_is_told(cells, sign):
    assert signs(*cells) == [sign]


def test_a_stage_that_beats_the_engine_is_a_sign():
    took = dict(fastest=1.0, slowest=2.0, first_token=0.1, slowest_first_token=0.2, tokens_per_second=9.0, kv_bytes=1.0)
    rows = [Served("s15_prefix_cache", seconds=1.0, **took), Served("engine", seconds=2.0, **took)]
    data = {"text/plain": "requests", VEGA_LITE: ServedChart(rows, "here", "requests", "s15_prefix_cache").spec}
    [sign] = signs(new_code_cell("1", outputs=[new_output("display_data", data=data)]))
    assert sign.startswith("Cell 1: s15_prefix_cache answers the requests in 1.00 s, the engine in 2.00 s")


def test_what_may_differ_is_no_sign():
    """Two stages, a race of three, another shape."""
    apart = {"s01_naive_cat": (100.0, 99.0, 101.0), "s04_vectorized_gather": (300.0, 299.0, 301.0)}
    three = {"Recompute": (10.0, 9.9, 10.1), **apart}
    assert signs(race_of(apart), race_of(three), race_of(QUIET, "16 sequences", 40_000.0)) == []


@pytest.mark.nightly
@pytest.mark.slow
def test_such_a_recording_is_refused_and_the_file_left_alone(tmp_path):
    source = """\
from roseinfer.bench import neighbours
from roseinfer.display.chart import VEGA_LITE
from course.display.speed_bars import SpeedBars
from course.teach.served.chart import ServedChart
from course.teach.served.kept import Served
bars = SpeedBars(["s01_naive_cat"], "Race()")
bars.show("8 sequences", {"s01_naive_cat": (100.0, 20.0, 180.0)}, 1e4)
bars"""
    path = tmp_path / "busy.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)
    before = path.read_bytes()
    with pytest.raises(record.RecordingFailed, match="busy, nothing recorded: Cell 0: runs of s01_naive_cat from 20"):
        record.record(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_the_course_was_recorded_on_a_quiet_machine(path):
    nb = nbformat.read(path, as_version=4)
    # Background notebooks race nothing, 16, 17, 19, 20 and 22 show their runs in tables, and 23 races on a GPU alone.
    has_races = not path.name.startswith(("a", "16", "17", "19", "20", "22", "23"))
    assert bool(list(races(nb))) == has_races and busy_signs(nb) == []


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_the_runs_in_data_were_recorded_on_a_quiet_machine(path):
    """By the rule of the sentence that a command prints above such times."""
    assert neighbours.busy_signs(json.loads(path.read_text(encoding="utf-8"))["samples"]) == []
