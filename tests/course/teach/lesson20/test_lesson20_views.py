"""Lesson 20: simulated loads and their picture, rules of admission, and what a load's parts add up to."""

from __future__ import annotations

import pytest

from course import teach
from course.display.board import VEGA
from course.teach.exercises.solutions import solution
from course.teach.lesson20 import load_picture, loads
from course.teach.lesson20.simulated_load import SLOTS, StatedCost, is_good, simulate_load, ttft
from roseinfer.bench.serving.client import COMPLETE, Outcome


def test_a_simulated_load_is_exact():
    one, again = simulate_load(30, 2), simulate_load(30, 2)
    assert [(r.arrival, r.end) for r in one.requests] == [(r.arrival, r.end) for r in again.requests]
    assert len(one.requests) == 60 and one.refused == 0
    faster = simulate_load(60, 1)
    assert [(r.arrival.prompt_len, r.arrival.output_len) for r in faster.requests] == [
        (r.arrival.prompt_len, r.arrival.output_len) for r in one.requests
    ]
    assert [2 * r.arrival.seconds for r in faster.requests] == pytest.approx([r.arrival.seconds for r in one.requests])


def test_without_others_a_request_takes_its_steps():
    [alone] = simulate_load(1, 1).requests
    cost = StatedCost()
    prompt = cost.step + cost.sequence + cost.prompt_token * alone.arrival.prompt_len
    assert ttft(alone) == pytest.approx(prompt)
    decode = (alone.arrival.output_len - 1) * (cost.step + cost.sequence)
    assert alone.end - alone.arrival.seconds == pytest.approx(prompt + decode) and is_good(alone)


def test_goodput_falls_past_the_knee_and_throughput_does_not():
    below, above = simulate_load(20, 8), simulate_load(50, 8)
    assert below.goodput == below.throughput
    assert above.throughput > below.throughput and above.goodput < below.goodput / 2
    assert above.p99_ttft > 5 * below.p99_ttft


@pytest.fixture(scope="module")
def picture():
    load_picture.MEASURED_SECONDS, before = 2.0, load_picture.MEASURED_SECONDS
    load_picture._past_the_knee, choose = (lambda loads: 8), load_picture._past_the_knee
    yield teach.draw_load()
    load_picture.MEASURED_SECONDS, load_picture._past_the_knee = before, choose


def test_the_picture_has_a_frame_per_rate(picture):
    assert picture.lengths == {"": len(load_picture.RATES)}
    assert repr(picture).count("requests arrive per second") == len(load_picture.RATES)
    first = picture.texts(0)
    load = simulate_load(load_picture.RATES[0], load_picture.MEASURED_SECONDS)
    seconds = load.requests[-1].arrival.seconds - load.requests[0].arrival.seconds
    assert any(f"{len(load.requests) / seconds:.1f} requests arrive per second" in text for text in first)
    assert "One second of arrivals on its own: 5 requests, a row for each" in first
    assert "One second of arrivals on its own: 60 requests, a row for each" in picture.texts(11)
    bundle, _ = picture._repr_mimebundle_()
    assert VEGA in bundle and bundle["image/png"].startswith(b"\x89PNG")


def test_rules_at_an_overload():
    shown = teach.race_admission(
        {"no limit": teach.at_most(400), "8 may wait": teach.at_most(8), "admit": solution("20.4")}
    )
    rows = shown.df.set_index("rule")
    assert rows.loc["no limit", "refused (429)"] == 0 and (rows["answered"] + rows["refused (429)"] == 400).all()
    assert (rows.loc[["8 may wait", "admit"], "good/s"] > 5 * rows.loc["no limit", "good/s"]).all()
    assert "good/s" in repr(shown)


def test_a_rule_that_is_not_written_lets_every_request_in():
    shown = teach.race_admission({"no limit": teach.at_most(400), "stub": lambda *state: None})
    rows = shown.df.drop(columns="rule")
    assert rows.loc[0].equals(rows.loc[1])


def test_a_rule_is_told_the_state_as_a_request_comes():
    seen = []

    def note(num_queued, num_free, ends, limit):
        seen.append((num_queued, num_free, list(ends), limit))
        return len(seen) <= 12

    load = simulate_load(200, 1, note)
    assert len(load.requests) == 12 and load.refused == 188 and len(seen) == 200
    assert seen[0] == (0, SLOTS, [], 0.25)
    assert max(queued - free for queued, free, _, _ in seen) == 12 - SLOTS
    ends = sorted(one.end for one in load.requests)
    assert seen[-1][2] == ends and all(told == ends[: len(told)] for _, _, told, _ in seen)


def outcome(arrival, first, last, tokens):
    return Outcome(arrival, arrival, [first, last], ended=last, num_tokens=tokens, how=COMPLETE)


def test_the_parts_of_a_latency_add_up_to_what_the_client_saw():
    outcomes = [outcome(0.0, 0.5, 2.0, 10), outcome(1.0, 2.0, 3.0, 10)]
    spent = {"request_queue_time_seconds": 0.25, "time_to_first_token_seconds": 0.5}
    parts = loads.parts_of(spent | {"e2e_request_latency_seconds": 1.75}, outcomes)
    assert parts == {loads.QUEUE: 0.25, loads.PREFILL: 0.25, loads.DECODE: 1.25, loads.HTTP: 0.25}
