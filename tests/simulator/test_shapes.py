"""Shapes of clusters, and what tensor-parallel shards take on their links."""

from __future__ import annotations

import json

import pytest
from clocks import UnitCost

from roseinfer.arrivals import at_once
from roseinfer.simulator import ClusterShape, EngineSetting, Link, StepWork, floor_cost, simulations, tensor_parallel

FLOOR = floor_cost("H100 SXM", "random:qwen2.5-7b", "float16", host_seconds=1e-3)
WORK = StepWork(8, 8, 0, 4000, 0, 0)
LINK = Link(450e9, 2e-6)


@pytest.mark.parametrize(
    ("typed", "shape"),
    [
        (8, ClusterShape(8)),
        ("8", ClusterShape(8)),
        ("4x2", ClusterShape(4, shards=2)),
        ("3x1", ClusterShape(3)),
        (" 2:6", ClusterShape(8, num_prefill=2)),
    ],
)
def test_forms(typed, shape):
    assert ClusterShape.of(typed) == shape
    assert ClusterShape.of(shape.label) == shape


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("many", "replicas 'many': must be of a form such as 8"),
        ("4x", "replicas '4x': must be of a form"),
        ("1:2:3", "replicas '1:2:3': must be of a form"),
        (True, "replicas True: must be of a form"),
        ("0", "replicas must be an integer from 1 to 4,096, got 0"),
        ("4x0", "shards must be an integer from 1 to 64, got 0"),
        ("0:4", "replicas that prefill must be an integer of at least 1, got 0"),
        ("4:0", "replicas that decode must be an integer of at least 1, got 0"),
    ],
)
def test_other_forms_are_refused(typed, error):
    with pytest.raises(ValueError, match=error):
        ClusterShape.of(typed)


def test_one_shard_costs_what_the_floor_does():
    assert tensor_parallel(FLOOR, 1, LINK).seconds(WORK) == FLOOR.seconds(WORK)


def test_two_all_reduces_a_layer():
    """28 layers, 3584 wide, 8 tokens in float16: each of 6 messages in a ring of 4 has a quarter of the bytes."""
    message = 2e-6 + 8 * 3584 * 2 / 4 / 450e9
    cost = tensor_parallel(FLOOR, 4, LINK)
    assert cost.reduce_seconds(8) == pytest.approx(2 * 28 * 6 * message, rel=1e-12)
    host, device = FLOOR.seconds(WORK)
    assert cost.seconds(WORK) == (host, pytest.approx(device / 4 + 2 * 28 * 6 * message, rel=1e-12))
    assert json.dumps(cost.to_dict()) and "4 tensor-parallel shards" in cost.about


def test_a_slow_link_makes_shards_slower_than_one_gpu():
    slow, fast = (tensor_parallel(FLOOR, 8, Link(rate, 1e-6)).seconds(WORK)[1] for rate in (1e7, 450e9))
    assert slow > FLOOR.seconds(WORK)[1] > fast


def test_replicas_of_shards_have_the_blocks_and_sequences_of_their_gpus():
    """16 requests run at a time on either shape, in one step of one replica or in two of two."""
    arrivals = at_once(16, prompt_lens=(16, 16), output_lens=(4, 4))
    setting = EngineSetting(num_blocks=16, block_size=16, max_num_seqs=8)
    result = simulations(arrivals, setting, FLOOR, policies=["fcfs"], replicas=[2, "1x2"], link=LINK)
    apart, sharded = result.rows
    assert (apart["steps"], sharded["steps"]) == (8, 4) and (apart["preemptions"], sharded["preemptions"]) == (0, 0)
    assert (sharded["shape"], sharded["replicas"], sharded["shards"]) == ("1x2", 1, 2)
    assert "tensor-parallel shards, a GPU each" in result.text() and "1x2" in result.text()


@pytest.mark.parametrize(
    ("cost", "link", "error"),
    [
        (UnitCost(), LINK, "replicas {}: needs a floor as its cost"),
        (FLOOR, None, "replicas {}: needs a link between GPUs"),
    ],
)
@pytest.mark.parametrize("shape", ["1x2", "1:1"])
def test_what_gpus_send_each_other_must_be_known(cost, link, error, shape):
    arrivals = at_once(1, prompt_lens=(1, 1), output_lens=(1, 1))
    with pytest.raises(ValueError, match=error.format(shape)):
        simulations(arrivals, EngineSetting(num_blocks=8), cost, policies=["fcfs"], replicas=[shape], link=link)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Link(0), "bytes_per_s must be a number above 0, got 0"),
        (lambda: Link(1e9, -1.0), "latency must be a number of at least 0, got -1.0"),
        (lambda: tensor_parallel(FLOOR, 0, LINK), "shards must be an integer of at least 1, got 0"),
    ],
)
def test_what_no_link_is(make, error):
    with pytest.raises(ValueError, match=error):
        make()
