"""Cost of the dashboard for the decoding that it shows: measured in turn, samples kept."""

from __future__ import annotations

from tools.dashboard_overhead import overhead, summary


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
        "alone_seconds": 2.0,
        "dashboard_seconds": 2.5,
        "slowdown": 0.25,
        "redraw_share": 0.08,
        "redraws_per_second": 0.8,
    }
