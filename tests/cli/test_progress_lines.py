"""A bar in a terminal, elsewhere a line every few seconds, and an estimate once the warm-up is over."""

from __future__ import annotations

import re
import sys
import time
from contextlib import nullcontext

import pytest

from roseinfer.cli import progress
from roseinfer.cli.main import main
from roseinfer.profiling.progress import RunProgress


def test_something_that_takes_long_says_where_it_is(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    with progress.shown_progress("loading the model") as on_progress:
        wait_for(capsys, "s  loading the model")
        on_progress(RunProgress("warm-up", "s01", runs_done=1, runs_total=9, seconds_left=200.0))
        wait_for(capsys, "s  warm-up: s01 (1 of 9 runs done, about 3 min left)")


def test_a_terminal_has_a_bar_that_is_gone_afterwards(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.shown_progress("loading the model") as on_progress:
        begun = capsys.readouterr().err
        assert "00:00 loading the model" in begun and "?" not in begun and "|" not in begun, "nothing is counted yet"
        on_progress(RunProgress("a run", "s01", 0, runs_done=3, runs_total=9, seconds_left=400.0))
        said = capsys.readouterr().err
        assert "estimate, from the warm-up: about 7 min for 6 runs\n" in said
        assert "| a run: s01" in said and "3/9 " in said and "about 7 min left |" in said
    out, err = capsys.readouterr()
    assert out == "" and err.split("\r")[-2].strip() == ""


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("tokens", [0, 12_345])
def test_a_terminal_of_any_width_shows_the_time_that_is_left(monkeypatch, capsys, columns, tokens):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tqdm.std._screen_shape_wrapper", lambda: lambda file: (columns, 24))
    with progress.shown_progress() as on_progress:
        run = RunProgress("a run", "s18_one_kernel", 0, tokens, 9.9, runs_done=3, runs_total=120, seconds_left=34.0)
        on_progress(run)
        shown = capsys.readouterr().err.split("\r")[-1]
    assert "about 34 s left |" in shown and len(shown) <= columns
    assert columns < 80 or shown.endswith("s18_one_kernel" + (", 1,247 tok/s" if tokens else ", 0 tok/s"))


def wait_for(capsys, text: str) -> None:
    said, ends = "", time.monotonic() + 30
    while text not in said and time.monotonic() < ends:
        said += capsys.readouterr().err
    assert text in said


def test_the_estimate_is_said_once_before_the_first_run_that_counts(capsys):
    with progress.shown_progress() as on_progress:
        on_progress(RunProgress("warm-up", "s01", runs_total=9, seconds_left=500.0))
        assert capsys.readouterr().err == ""
        for repeat in (0, 1):
            on_progress(RunProgress("a run", "s01", repeat, runs_done=3, runs_total=9, seconds_left=400.0))
    assert capsys.readouterr().err == "estimate, from the warm-up: about 7 min for 6 runs\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "about 1 s"), (42, "about 42 s"), (130, "about 2 min"), (9000, "about 2.5 h"), (9e7, "about 25,000.0 h")],
)
def test_durations(seconds, text):
    assert progress.duration(seconds) == text


@pytest.mark.slow
def test_a_simulation_tells_of_each_of_its_steps_and_runs(monkeypatch, capsys):
    seen: list[RunProgress] = []
    monkeypatch.setattr("roseinfer.cli.commands.simulate.shown_progress", lambda *doing: nullcontext(seen.append))
    assert main("simulate --fit tiny --repeats 1 --requests 4 --max-num-seqs 2".split()) == 0
    measured = [run for run in seen if "replica" not in run.phase]
    assert [run.runs_done for run in measured] == list(range(measured[0].runs_total))
    assert measured[0].repeat < 0 <= measured[-1].repeat and measured[-1].seconds_left > 0
    assert not re.search("[Ee]rror", capsys.readouterr().err)
