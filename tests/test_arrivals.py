"""Arrivals: drawn with a seed, or read from a file whose wrong lines are named."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from roseinfer.arrivals import Arrival, at_once, bursts, poisson, read_trace, require_order

LENGTHS = {"prompt_lens": (16, 256), "output_lens": (16, 128)}


def test_the_same_seed_draws_the_same_and_another_one_does_not():
    drawn = poisson(50, 2.0, **LENGTHS, seed=3)
    assert drawn == poisson(50, 2.0, **LENGTHS, seed=3) != poisson(50, 2.0, **LENGTHS, seed=4)
    require_order(drawn)


def test_a_rate_changes_the_times_in_proportion_and_no_length():
    slow, fast = (poisson(50, rate, **LENGTHS) for rate in (1.0, 4.0))
    assert [a.seconds for a in fast] == pytest.approx([a.seconds / 4 for a in slow])
    assert [(a.prompt_len, a.output_len) for a in fast] == [(a.prompt_len, a.output_len) for a in slow]


def test_gaps_are_those_of_a_poisson_process():
    """Their mean and their standard deviation are both one over the rate."""
    gaps = [b.seconds - a.seconds for a, b in pairwise(poisson(20_000, 5.0, **LENGTHS))]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.2, rel=0.03) and deviation == pytest.approx(0.2, rel=0.03)


def test_lengths_reach_both_ends_of_their_range():
    drawn = at_once(2000, prompt_lens=(3, 5), output_lens=(7, 7))
    assert {a.prompt_len for a in drawn} == {3, 4, 5} and {a.output_len for a in drawn} == {7}
    assert {a.seconds for a in drawn} == {0.0}


def test_bursts_come_together_at_the_same_rate_on_average():
    drawn = bursts(10_000, 5.0, 10, **LENGTHS)
    seconds = [a.seconds for a in drawn]
    assert len(set(seconds)) == 1000 and all(len(set(seconds[i : i + 10])) == 1 for i in range(0, 10_000, 10))
    assert seconds[-1] == pytest.approx(2000, rel=0.1)


def test_a_shared_prefix_comes_before_a_prompts_own_tokens():
    drawn = at_once(5, prompt_lens=(3, 3), output_lens=(1, 1), prefix_len=8)
    assert {(a.prefix, a.prompt_len) for a in drawn} == {((0, 8), 11)}


def test_groups_of_prompts_share_a_prefix_and_keep_their_lengths():
    one, four = (at_once(400, prompt_lens=(3, 9), output_lens=(1, 5), prefix_len=8, prefix_groups=n) for n in (1, 4))
    assert {a.prefix for a in four} == {(text, 8) for text in range(4)} and {a.prefix for a in one} == {(0, 8)}
    assert [(a.prompt_len, a.output_len) for a in one] == [(a.prompt_len, a.output_len) for a in four]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[1]"], "line 1: must be an object such as"),
        (['{"seconds": 0, "prompt_len": 4'], "line 1: is not JSON"),
        (["", '{"seconds": 0, "prompt_len": 4}'], "line 2: output_len is missing"),
        (['{"second": 0}'], r"line 1: unknown field 'second' \(nearest: seconds\)"),
        (['{"seconds": -1, "prompt_len": 4, "output_len": 2}'], "line 1: seconds must be a number of at least 0"),
        (['{"seconds": NaN, "prompt_len": 4, "output_len": 2}'], "line 1: seconds must be a number of at least 0"),
        (['{"seconds": 0, "prompt_len": 0, "output_len": 2}'], "line 1: prompt_len must be an integer of at least 1"),
        (['{"seconds": 0, "prompt_len": 4, "output_len": 1.5}'], "line 1: output_len must be an integer"),
        (
            ["{good}", '{"seconds": 0.5, "prompt_len": 4, "output_len": 2}'],
            r"line 2: seconds=0.5 is before 1.0 of the arrival above, they must be in order of time",
        ),
        ([], "must have at least one arrival"),
        (["\udcff"], "is not UTF-8 text"),
    ],
)
def test_a_bad_trace_is_refused_and_its_line_named(tmp_path: Path, lines: list[str], message: str):
    path = tmp_path / "trace.jsonl"
    good = '{"seconds": 1.0, "prompt_len": 4, "output_len": 2}'
    text = "\n".join(lines).replace("{good}", good)
    path.write_bytes(text.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(ValueError, match=message) as error:
        read_trace(path)
    assert str(error.value).startswith(str(path))


def test_a_trace_is_read(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"seconds": 0.25, "prompt_len": 4, "output_len": 2}\n\n'
        '{"seconds": 1, "prompt_len": 9, "output_len": 1, "prefix": [3, 8]}\n'
    )
    assert read_trace(path) == [Arrival(0.25, 4, 2), Arrival(1, 9, 1, (3, 8))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: poisson(0, 1.0, **LENGTHS), "num_requests must be an integer from 1 to 1,000,000, got 0"),
        (lambda: poisson(5, 0.0, **LENGTHS), "rate must be a number above 0, got 0.0"),
        (lambda: bursts(5, 1.0, 0, **LENGTHS), "burst must be an integer of at least 1, got 0"),
        (lambda: poisson(5, 1.0, prompt_lens=(9, 8), output_lens=(1, 1)), r"prompt_lens must be .*got \(9, 8\)"),
        (lambda: require_order([]), "arrivals must be at least one, got none"),
        (lambda: require_order([Arrival(2.0, 1, 1), Arrival(1.0, 1, 1)]), r"arrivals\[1\] comes at second 1.0, before"),
    ],
)
def test_bad_arguments_are_refused(call, message: str):
    with pytest.raises(ValueError, match=message):
        call()
