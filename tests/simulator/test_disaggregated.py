"""Prefill and decode on separate replicas: who computes what, and when K and V are there."""

from __future__ import annotations

import pytest
from clocks import UnitCost
from hypothesis import given, settings
from hypothesis import strategies as st

from roseinfer.arrivals import Arrival, at_once
from roseinfer.simulator import DisaggregatedCluster, EngineSetting, Link, floor_cost, simulations

ROOMY = EngineSetting(num_blocks=64, block_size=16, max_num_seqs=8)
APART = {"kv_bytes": 10, "link": Link(5.0, 0.5)}  # a prompt of 4 tokens takes 8.5 seconds


def run(arrivals, num_replicas=2, num_prefill=1, setting=ROOMY, **more):
    cluster = DisaggregatedCluster(setting, UnitCost(), num_replicas, num_prefill=num_prefill, **APART | more)
    cluster.run(arrivals)
    return cluster


def finishes(request) -> list[float]:
    return [step.finish for step in request.times.steps]


def test_the_second_token_waits_for_the_transfer():
    """The first token is there at 1, K and V at 9.5."""
    (request,) = run([Arrival(0, 4, 3)]).requests
    assert finishes(request) == [1, 10.5, 11.5] and request.times.ended == 11.5
    assert (request.replica, request.decoded_by) == (0, 1)
    assert request.times.first_scheduled == 0


def test_a_replica_sends_one_prompt_at_a_time():
    first, second = run([Arrival(0, 4, 2), Arrival(0, 4, 2)]).requests
    assert finishes(first) == [1, 10.5] and finishes(second) == [1, 19]


def test_two_replicas_send_at_the_same_time():
    first, second = run([Arrival(0, 4, 2), Arrival(0, 4, 2)], num_replicas=3, num_prefill=2).requests
    assert finishes(first) == finishes(second) == [1, 10.5]


def test_a_single_token_is_not_handed_over():
    cluster = run([Arrival(0, 4, 1)])
    assert finishes(cluster.requests[0]) == [1] and cluster.requests[0].decoded_by is None
    assert cluster.replicas[1].num_steps == 0 and cluster.now == 1


def test_decodes_go_where_the_fewest_tokens_are():
    cluster = run([Arrival(0, 90, 40), Arrival(200, 10, 40), Arrival(230, 10, 40)], num_replicas=3, link=Link(1e9))
    assert [request.decoded_by for request in cluster.requests] == [1, 1, 2]


def test_no_step_of_a_decode_has_a_prompt():
    """UnitCost sees the work of each step."""
    works = []
    cost = UnitCost(lambda work: works.append(work) or 1.0)
    cluster = DisaggregatedCluster(ROOMY, cost, 2, num_prefill=1, **APART)
    cluster.run(at_once(20, prompt_lens=(2, 60), output_lens=(2, 9)))
    prompts = [work for work in works if work.prompt_tokens]
    assert len(prompts) == cluster.replicas[0].num_steps and all(not work.num_decodes for work in prompts)
    assert sum(work.num_decodes for work in works) == sum(r.arrival.output_len - 1 for r in cluster.requests)


def test_a_preempted_sequence_is_computed_again_where_it_decodes():
    """Two sequences of 30 tokens in the end do not fit 3 blocks of 16."""
    setting = EngineSetting(num_blocks=3, block_size=16, max_num_seqs=2)
    cluster = run([Arrival(0, 10, 25), Arrival(0, 10, 25)], setting=setting, link=Link(1e9))
    assert cluster.replicas[1].scheduler.num_preemptions == 1
    assert [len(finishes(request)) for request in cluster.requests] == [25, 25]


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=25),
    num_prefill=st.integers(1, 3),
    num_decode=st.integers(1, 3),
    num_blocks=st.integers(11, 20),
    rate=st.sampled_from([1.0, 50.0, 1e9]),
)
def test_every_request_ends(sizes, num_prefill, num_decode, num_blocks, rate):
    arrivals = [Arrival(*one) for one in sorted(sizes)]
    setting = EngineSetting(num_blocks=num_blocks, block_size=4, max_num_seqs=3, max_model_len=44)
    cluster = DisaggregatedCluster(
        setting, UnitCost(), num_prefill + num_decode, num_prefill=num_prefill, kv_bytes=10, link=Link(rate)
    )
    cluster.run(arrivals, lambda replica: replica.scheduler.blocks.check())
    for request in cluster.requests:
        assert len(finishes(request)) == request.arrival.output_len
        assert finishes(request) == sorted(finishes(request)) and request.times.ended == finishes(request)[-1]
    for replica in cluster.replicas:
        assert replica.is_idle and not replica.load and replica.scheduler.blocks.num_free == num_blocks


def test_against_as_many_replicas_that_do_both():
    """Long prompts hold up decodes where both are on one replica."""
    arrivals = [Arrival(0.004 * i, 2000, 50) for i in range(60)]
    setting = EngineSetting(num_blocks=4096, max_num_seqs=64, max_num_batched_tokens=4096)
    result = simulations(
        arrivals,
        setting,
        floor_cost("H100 SXM", "random:qwen2.5-7b", "float16"),
        policies=["fcfs"],
        replicas=["4", "2:2"],
        link=Link(450e9),
    )
    mixed, apart = result.rows
    assert (mixed["shape"], apart["shape"], apart["num_prefill"]) == ("4", "2:2", 2)
    assert mixed["output_tokens"] == apart["output_tokens"] and mixed["ended"] == apart["ended"] == 60
    assert apart["times"]["itl"]["p99"] < mixed["times"]["itl"]["p99"]
    assert "first replicas prefill" in result.text() and "450 GB/s" in result.text()


@pytest.mark.parametrize(("num_replicas", "num_prefill"), [(2, 2), (2, 0), (1, 1)])
def test_both_kinds_are_needed(num_replicas, num_prefill):
    with pytest.raises(ValueError, match="num_prefill must be an integer from 1"):
        DisaggregatedCluster(ROOMY, UnitCost(), num_replicas, num_prefill=num_prefill, **APART)
