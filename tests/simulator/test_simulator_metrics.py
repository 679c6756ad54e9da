"""Metrics: the engine's definitions on simulated times, in runs small enough to compute by hand."""

from __future__ import annotations

import pytest
from clocks import UnitCost

from roseinfer.arrivals import Arrival
from roseinfer.simulator import Cluster, EngineSetting
from roseinfer.simulator.metrics import TIMES, summary


def test_a_run_by_hand():
    """Two places: the third request waits for the second to end, at second 2. Steps end at 1, 2, 3, 4, 5."""
    cluster = Cluster(EngineSetting(num_blocks=8, block_size=4, max_num_seqs=2), UnitCost())
    cluster.run([Arrival(0, 3, 5), Arrival(0, 3, 2), Arrival(0.5, 3, 3)])
    found = summary(cluster)
    times = found.pop("times")
    assert found == {
        "requests": 3,
        "ended": 3,
        "output_tokens": 10,
        "seconds": 5.0,
        "requests_per_second": 0.6,
        "tokens_per_second": 2.0,
        "tail_seconds": 3.0,
        "steps": 5,
        "rows_per_step": 2.0,
        "preemptions": 0,
        "hit_rate": 0.0,
        "host_share": 0.0,
        "busy": [1.0],
    }
    assert list(times) == [metric.name for metric in TIMES]
    of_three = {"count": 3, "p50": 1.0}
    assert times["waiting_time"] == of_three | {"mean": 0.5, "p50": 0.0, "p90": 1.5, "p99": 1.5, "max": 1.5}
    assert times["ttft"] == of_three | {"mean": 1.5, "p90": 2.5, "p99": 2.5, "max": 2.5}
    assert times["e2e_latency"] == {
        "count": 3,
        "mean": pytest.approx(11.5 / 3),
        "p50": 4.5,
        "p90": 5.0,
        "p99": 5.0,
        "max": 5.0,
    }
    assert times["tpot"] == of_three | {"mean": 1.0, "p90": 1.0, "p99": 1.0, "max": 1.0}
    assert times["itl"] == times["tpot"] | {"count": 7}


def test_a_pause_of_a_preempted_request_is_a_gap():
    """Two blocks of 4 tokens: at 5 tokens the first needs the second one's block, which waits until it has ended."""
    setting = EngineSetting(num_blocks=3, block_size=4, max_num_seqs=2, enable_prefix_caching=False)
    cluster = Cluster(setting, UnitCost())
    cluster.run([Arrival(0, 3, 6), Arrival(0, 3, 6)])
    found = summary(cluster)
    assert found["preemptions"] == 1 and found["hit_rate"] is None
    assert found["times"]["itl"]["max"] == 5.0 and found["times"]["tpot"]["max"] == 9 / 5


def test_nothing_has_happened_yet():
    found = summary(Cluster(EngineSetting(num_blocks=8), UnitCost(), 2))
    assert found["requests"] == found["tokens_per_second"] == 0 and found["busy"] == [0.0, 0.0]
    assert found["times"] == {}
