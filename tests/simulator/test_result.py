"""Policies and cluster sizes raced on the same requests, and what is told of a race."""

from __future__ import annotations

from clocks import UnitCost

from roseinfer.arrivals import at_once
from roseinfer.simulator import EngineSetting, simulations

SETTING = EngineSetting(num_blocks=64, block_size=16, max_num_seqs=4)
ARRIVALS = at_once(30, prompt_lens=(1, 30), output_lens=(1, 60))


def race(policies=("fcfs", "longest_output"), replicas=(1, 2), **more):
    return simulations(ARRIVALS, SETTING, UnitCost(), policies=policies, replicas=replicas, **more)


def test_every_request_ends_under_each_policy_and_size():
    result = race(arguments={"seed": 0})
    tokens = sum(a.output_len for a in ARRIVALS)
    assert [(row["ended"], row["output_tokens"]) for row in result.rows] == [(30, tokens)] * 4
    assert result.arguments["seed"] == 0


def test_longest_first_has_the_shorter_tail():
    first_come, longest = race(replicas=(1,)).rows
    assert longest["seconds"] < first_come["seconds"] and longest["tail_seconds"] < first_come["tail_seconds"]
    assert longest["rows_per_step"] > first_come["rows_per_step"]


def test_the_text_tells_all_of_it():
    text = race().text()
    first, second, notes = text.split("\n\n")
    assert "to fcfs" in first and "tail s" in first and len(first.splitlines()) == 2 + 4
    assert [line.split()[0] for line in second.splitlines()[2::4]] == [
        "waiting_time",
        "ttft",
        "tpot",
        "itl",
        "e2e_latency",
    ]
    for told in ("a second a step", "engine's own", "nearest rank", "Routing"):
        assert told in notes


def test_one_policy_is_behind_nobody():
    assert "to fcfs" not in race(policies=("fcfs",)).text()
