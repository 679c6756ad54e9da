"""Arrivals: seeded, in order, of the sizes that were asked for; and trace files, whose wrong lines are named."""

from __future__ import annotations

import pytest

from roseinfer.simulator import Arrival, at_once, bursts, poisson, read_trace
from roseinfer.simulator.arrivals import require_order

SIZES = {"prompt_lens": (3, 9), "output_lens": (2, 4)}
LINE = '{"seconds": 1.5, "prompt_len": 8, "output_len": 2}'


@pytest.mark.parametrize("make", [lambda **s: poisson(500, 40.0, **s), lambda **s: bursts(500, 40.0, 7, **s)])
def test_arrivals_are_seeded_in_order_and_at_their_rate(make):
    arrivals = make(**SIZES, seed=3)
    assert arrivals == make(**SIZES, seed=3) != make(**SIZES, seed=4)
    require_order(arrivals)
    assert 500 / 40 / 1.5 < arrivals[-1].seconds < 1.5 * 500 / 40
    assert {a.prompt_len for a in arrivals} == set(range(3, 10)) and {a.output_len for a in arrivals} == {2, 3, 4}


def test_a_burst_comes_together():
    times = [a.seconds for a in bursts(10, 5.0, 4, **SIZES)]
    assert len(set(times)) == 3 and times[0] == times[3] < times[4] == times[7] < times[8] == times[9]


def test_a_prefix_is_part_of_every_prompt():
    arrivals = at_once(20, **SIZES, prefix_len=100)
    assert {(a.seconds, a.prefix) for a in arrivals} == {(0.0, (0, 100))}
    assert {a.prompt_len for a in arrivals} <= set(range(103, 110))


def test_a_trace_is_read(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f'{LINE}\n\n{{"seconds": 2, "prompt_len": 9, "output_len": 1, "prefix": [3, 4]}}\n')
    assert read_trace(trace) == [Arrival(1.5, 8, 2), Arrival(2, 9, 1, (3, 4))]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "line 2: is not JSON"),
        ("[1, 2]", "line 2: must be an object"),
        (LINE.replace("seconds", "second"), r"line 2: unknown field 'second' \(nearest: seconds\)"),
        ('{"seconds": 2, "prompt_len": 8}', "line 2: output_len is missing"),
        (LINE.replace("1.5", "-1"), "line 2: seconds must be a number of at least 0, got -1"),
        (LINE.replace("1.5", "NaN"), "line 2: seconds must be a number of at least 0, got nan"),
        (LINE.replace("8", "0"), "line 2: prompt_len must be an integer of at least 1, got 0"),
        (LINE.replace("2}", "2.5}"), "line 2: output_len must be an integer of at least 1, got 2.5"),
        (LINE.replace("}", ', "prefix": 3}'), "line 2: prefix must be a text and how many tokens"),
        (LINE.replace("}", ', "prefix": [0, 9]}'), "line 2: prefix has 9 tokens, and the prompt only prompt_len=8"),
        (LINE.replace("1.5", "1.25"), r"line 2: seconds=1.25 is before 1.5 of the arrival above"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, error):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(f"{LINE}\n{line}\n")
    with pytest.raises(ValueError, match=f"trace.jsonl, {error}"):
        read_trace(trace)


def test_an_empty_trace_is_refused(tmp_path):
    (tmp_path / "trace.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="at least one arrival"):
        read_trace(tmp_path / "trace.jsonl")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: poisson(0, 1.0, **SIZES), "num_requests must be an integer of at least 1, got 0"),
        (lambda: poisson(1, 0.0, **SIZES), "rate must be a number above 0, got 0.0"),
        (lambda: bursts(1, 1.0, 0, **SIZES), "burst must be an integer of at least 1, got 0"),
        (lambda: at_once(1, **SIZES, prefix_len=-1), "prefix_len must be an integer of at least 0, got -1"),
        (lambda: at_once(1, prompt_lens=(4, 3), output_lens=(1, 1)), r"prompt_lens must be .*, got \(4, 3\)"),
        (lambda: at_once(1, prompt_lens=(1, 1), output_lens=(0, 1)), r"output_lens must be .*, got \(0, 1\)"),
        (lambda: require_order([]), "at least one"),
        (lambda: require_order([Arrival(2, 1, 1), Arrival(1, 1, 1)]), r"arrivals\[1\] comes at second 1, before"),
    ],
)
def test_what_cannot_be_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()
