"""Clusters: whatever comes when, every request ends, no block stays behind, and time goes one way."""

from __future__ import annotations

import pytest
from clocks import UnitCost
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.arrivals import Arrival, at_once
from roseinfer.engine.policies import POLICIES
from roseinfer.simulator import ROUTERS, Cluster, EngineSetting

ROOMY = EngineSetting(num_blocks=64, block_size=16, max_num_seqs=8)
requests = st.builds(
    lambda gap, own, output_len, shared: (gap, own + shared, output_len, (0, shared) if shared else None),
    st.sampled_from([0.0, 0.0, 0.25, 3.0, 90.0]),
    st.integers(1, 20),
    st.integers(1, 12),
    st.sampled_from([0, 5, 12]),
)


def in_order(drawn) -> list[Arrival]:
    now, arrivals = 0.0, []
    for gap, *sizes in drawn:
        now += gap
        arrivals.append(Arrival(now, *sizes))
    return arrivals


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(requests, min_size=1, max_size=30),
    num_replicas=st.integers(1, 4),
    router=st.sampled_from(sorted(ROUTERS)),
    policy=st.sampled_from(sorted(POLICIES)),
    caching=st.booleans(),
    num_blocks=st.integers(11, 24),
    places=st.integers(1, 5),
    more=st.integers(0, 9),
    a_row=st.sampled_from([0.0, 0.01, 0.5]),
)
def test_every_request_ends(drawn, num_replicas, router, policy, caching, num_blocks, places, more, a_row):
    arrivals = in_order(drawn)
    setting = EngineSetting(
        num_blocks=num_blocks,
        block_size=4,
        max_num_seqs=places,
        max_model_len=64,
        max_num_batched_tokens=places + more,
        scheduling_policy=policy,
        enable_prefix_caching=caching,
    )
    cluster = Cluster(setting, UnitCost(lambda work: 0.125 + a_row * work.num_seqs), num_replicas, router)
    times = []

    def after_turn(replica):
        times.append(cluster.now)
        replica.scheduler.blocks.check()

    cluster.run(arrivals, after_turn)
    assert times == sorted(times)
    assert [r.arrival for r in cluster.requests] == arrivals
    for r in cluster.requests:
        stamps = [r.times.first_scheduled, *(step.finish for step in r.times.steps)]
        assert r.times.arrival == r.arrival.seconds <= stamps[0] and stamps == sorted(set(stamps))
        assert len(r.times.steps) == r.arrival.output_len and r.times.ended == stamps[-1]
    for replica in cluster.replicas:
        assert replica.is_idle and not replica.scheduler.has_work
        assert replica.scheduler.blocks.num_free == num_blocks


def test_replicas_take_requests_in_turn():
    cluster = Cluster(ROOMY, UnitCost(), 3)
    cluster.run([Arrival(0, 90, 4), Arrival(0, 10, 30), Arrival(0, 12, 30), Arrival(1, 40, 4), Arrival(1, 10, 4)])
    assert [r.replica for r in cluster.requests] == [0, 1, 2, 0, 1]


def test_a_request_that_comes_during_a_step_joins_the_next():
    cluster = Cluster(ROOMY, UnitCost())
    cluster.run([Arrival(0, 4, 3), Arrival(0.5, 4, 1), Arrival(2, 4, 1), Arrival(7.25, 4, 1)])
    times = [(r.times.first_scheduled, r.times.ended) for r in cluster.requests]
    assert times == [(0, 3), (1, 2), (2, 3), (7.25, 8.25)]


def test_twice_as_many_replicas_take_half_the_time():
    arrivals = at_once(64, prompt_lens=(10, 10), output_lens=(5, 5))
    ends = []
    for num_replicas in (1, 2, 4, 8):
        cluster = Cluster(ROOMY, UnitCost(), num_replicas)
        cluster.run(arrivals)
        ends.append(cluster.now)
    assert ends == [40, 20, 10, 5]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Cluster(ROOMY, UnitCost(), 0), "replicas must be an integer from 1 to 4,096, got 0"),
        (lambda: Cluster(ROOMY, UnitCost(), router="robin"), r"router: unknown value 'robin' \(nearest: round_robin\)"),
        (lambda: Cluster(ROOMY, UnitCost()).run([]), "at least one"),
        (lambda: Cluster(ROOMY, UnitCost()).run([Arrival(1, 1, 1), Arrival(0, 1, 1)]), "in order of time"),
        (lambda: Cluster(ROOMY, UnitCost()).run([Arrival(0, 1000, 26)]), r"arrivals\[0\] can never fit: .* 1025"),
        (
            lambda: EngineSetting(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=7),
            "max_num_batched_tokens=7 is less",
        ),
        (lambda: EngineSetting(num_blocks=64, scheduling_policy="fair"), "scheduling_policy must be one of fcfs"),
        (lambda: EngineSetting(num_blocks=0), "num_blocks must be an integer from 1 to 1,000,000, got 0"),
    ],
)
def test_what_cannot_run_is_refused(make, error):
    with pytest.raises(ValueError, match=error):
        make()


def test_the_longest_that_fits_does():
    cluster = Cluster(ROOMY, UnitCost())
    cluster.run([Arrival(0, 1000, 25)])
    assert cluster.requests[0].times.ended == 25
