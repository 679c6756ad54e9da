"""progress_bar: drawn a few times a second where a learner looks on, gone at the end, and silent everywhere else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from course.teach.exercises.contract_check import require_contract
from course.teach.journal import entries as journal
from course.teach.measure import progress_bar as bars
from course.teach.measure.progress_bar import progress_bar
from stages.s05_block_table import BlockTable


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """What a notebook would show, in order. Time passes only where a test says so: `drawn.now`."""
    shown = SimpleNamespace(html=[], now=0.0)

    def display(content, display_id):
        assert display_id is True
        shown.html.append(content.data)
        return SimpleNamespace(update=lambda content: shown.html.append(content.data))

    monkeypatch.setattr(bars, "display", display)
    monkeypatch.setattr(bars, "perf_counter", lambda: shown.now)
    monkeypatch.setattr(bars, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setenv(journal.PLACE, str(tmp_path / "progress.jsonl"))
    return shown


def test_it_is_redrawn_a_few_times_a_second_and_leaves_nothing(drawn):
    with progress_bar("steps of <mine>", total=30) as done:
        assert 'value="0" max="30"' in drawn.html[0] and "steps of &lt;mine&gt;: 0 of 30" in drawn.html[0]
        for _ in range(30):
            drawn.now += 0.0625
            done()
    values = [html.split('value="')[1].split('"')[0] for html in drawn.html[:-1]]
    assert values == ["0", "4", "8", "12", "16", "20", "24", "28"]
    assert drawn.html[-1] == ""


def test_an_error_takes_it_away_too(drawn):
    with pytest.raises(RuntimeError, match="inside"), progress_bar("steps", total=2):
        raise RuntimeError("inside")
    assert drawn.html[-1] == ""


def test_a_check_of_a_stage_shows_how_many_promises_are_tried(drawn):
    require_contract(BlockTable, ("Every block comes back", "Two at once"))
    assert "promises of s05_block_table: 0 of 2" in drawn.html[0] and drawn.html[-1] == ""


@pytest.mark.parametrize("where", ["no notebook", "a terminal", "a recorded run"])
def test_it_is_silent(monkeypatch, drawn, where):
    if where == "no notebook":
        monkeypatch.setattr(bars, "get_ipython", lambda: None)
    if where == "a terminal":
        monkeypatch.setattr(bars, "get_ipython", lambda: SimpleNamespace())
    if where == "a recorded run":
        monkeypatch.setenv(journal.PLACE, journal.OFF)
    with progress_bar("steps", total=2) as done:
        drawn.now += 1.0
        done()
    assert drawn.html == []
