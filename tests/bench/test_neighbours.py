"""A page says that the machine was busy where other programs had the cores, or where runs of one thing lie apart."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from roseinfer.bench.neighbours import busy_sentence, busy_signs, waited_seconds, with_waiting

SPIN = "import time; end = time.perf_counter() + 0.3\nwhile time.perf_counter() < end: pass"


def runs(name, speeds, waited=0.0, seconds=2.0):
    return [{"name": name, "tokens_per_second": s, "seconds": seconds, "waited_seconds": waited} for s in speeds]


QUIET = runs("s01", [100.0, 95.0, 98.0], waited=0.02) + runs("s02", [140.0, 150.0, 151.0])


def test_a_quiet_race_shows_nothing():
    assert busy_signs(QUIET) == [] and busy_sentence(QUIET) == "" and busy_signs([]) == []


def test_threads_that_waited_for_a_core_are_told():
    waiting = runs("s01", [100.0, 99.0, 98.0], waited=0.5)
    assert busy_signs(waiting) == ["threads of this race waited 1.5 s for a core in 6.0 s"]
    assert busy_sentence(waiting).startswith("This machine is busy: ")


def test_a_time_slice_in_a_short_race_says_nothing():
    assert busy_signs(runs("s01", [100.0, 99.0], waited=0.02, seconds=0.1)) == []
    assert busy_signs(runs("s01", [100.0, 99.0], waited=0.03, seconds=0.1)) != []


def test_runs_that_lie_apart_are_told_also_where_the_system_counts_no_waiting():
    apart = runs("s01", [100.0, 60.0], waited=None) + runs("s02", [140.0, 150.0], waited=None)
    assert busy_signs(apart) == ["runs of s01 lie between 60 and 100 tok/s"]


def test_runs_without_a_speed_are_judged_by_their_waiting():
    alone = [{"seconds": 0.01, "waited_seconds": 0.0}, {"seconds": 0.9, "waited_seconds": 0.01}]
    assert busy_signs(alone) == []
    busy = [*alone, {"seconds": 0.09, "waited_seconds": 0.2}]
    assert busy_signs(busy) == ["threads of this race waited 0.2 s for a core in 1.0 s"]


def test_what_the_threads_of_a_process_waited_is_added_up(tmp_path: Path):
    for task, figures in (("1", "9 1500000000 3"), ("2", "9 500000000 1"), ("ended", None)):
        (tmp_path / task).mkdir()
        if figures:
            (tmp_path / task / "schedstat").write_text(figures)
    assert waited_seconds(tmp_path) == 2.0
    assert waited_seconds(tmp_path / "no such system") is None


@pytest.mark.parametrize(("after", "waited"), [("9 2500000000 3", 1.0), ("9 500000000 3", 0.0)])
def test_what_threads_wait_during_a_piece_of_work(tmp_path: Path, after, waited):
    """The count falls where threads end."""
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("9 1500000000 3")
    assert with_waiting(lambda: (tmp_path / "1" / "schedstat").write_text(after), tmp_path) == (len(after), waited)
    assert with_waiting(lambda: "done", tmp_path / "no such system") == ("done", None)


@pytest.mark.slow
@pytest.mark.skipif(waited_seconds() is None, reason="this system does not count what a thread waits")
def test_a_neighbour_on_the_same_core_is_seen():
    """Two endless loops on one core: each waits about as long as it runs."""
    code = f"import os; os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})\n{SPIN}"
    first = subprocess.Popen([sys.executable, "-c", code])
    second = subprocess.Popen([sys.executable, "-c", code])
    waited = 0.0
    while second.poll() is None and first.poll() is None:
        waited = max(waited, waited_seconds(Path(f"/proc/{second.pid}/task")) or 0.0)
        time.sleep(0.02)
    first.wait(), second.wait()
    assert waited > 0
