"""Routers: where each of a few requests goes, and how much of their prompts is cached there."""

from __future__ import annotations

from clocks import UnitCost

from roseinfer.arrivals import Arrival, poisson
from roseinfer.simulator import ROUTERS, Cluster, EngineSetting, simulations

SETTING = EngineSetting(num_blocks=64, block_size=16, max_num_seqs=8)
GROUPS, PREFIX = 8, 32
GROUPED = poisson(200, 2.0, prompt_lens=(4, 20), output_lens=(1, 8), prefix_len=PREFIX, prefix_groups=GROUPS, seed=1)


def routed(router: str, arrivals: list[Arrival], num_replicas: int) -> list[int]:
    cluster = Cluster(SETTING, UnitCost(), num_replicas, router)
    cluster.run(arrivals)
    return [request.replica for request in cluster.requests]


def raced(routers, replicas=(4,)):
    return simulations(GROUPED, SETTING, UnitCost(), policies=["fcfs"], replicas=replicas, routers=routers).rows


def test_requests_of_a_prefix_stay_together():
    """Texts 0, 1, 0, 1; then a prompt without a prefix, and one of whose prompt the prefix is a quarter."""
    texts = [(0, 8), (1, 8), (0, 8), (1, 8), None]
    arrivals = [Arrival(10 * i, 10, 2, prefix) for i, prefix in enumerate(texts)]
    assert routed("prefix_aware", [*arrivals, Arrival(90, 32, 2, (0, 8))], 3) == [0, 1, 0, 1, 2, 2]


def test_a_longer_match_is_better_and_a_shorter_one_counts_as_what_it_is():
    """Replica 0 was sent 4 tokens of the text, replica 1 all 12. The third request has 8 of them."""
    arrivals = [Arrival(0, 20, 1, (0, 4)), Arrival(10, 30, 1, (0, 12)), Arrival(20, 8, 1, (0, 8))]
    assert routed("prefix_aware", arrivals, 2) == [0, 1, 1]


def test_load_alone_decides_while_replicas_are_far_apart():
    """The 66th finds 65 requests on one and none on the other. The 67th finds 65 and 1, and the prefix on both."""
    arrivals = [Arrival(0, 10, 2, (0, 8))] * 67
    assert routed("prefix_aware", arrivals, 2) == [0] * 65 + [1, 1]


def test_each_prefix_is_computed_once():
    """Requests come one after another, each after the one before it has ended."""
    arrivals = [Arrival(100 * i, PREFIX + 4, 2, (i % GROUPS, PREFIX)) for i in range(48)]
    (row,) = simulations(arrivals, SETTING, UnitCost(), policies=["fcfs"], replicas=[4], routers=["prefix_aware"]).rows
    assert row["hit_rate"] == (48 - GROUPS) * PREFIX / (48 * (PREFIX + 4))


def test_with_one_replica_all_routers_are_equal():
    first, *others = raced(sorted(ROUTERS), replicas=[1])
    assert all(row | {"router": first["router"]} == first for row in others) and len(others) == len(ROUTERS) - 1


def test_the_table_names_routers_where_there_are_several():
    arguments = {"policies": ["fcfs"], "replicas": [2]}
    several = simulations(GROUPED[:9], SETTING, UnitCost(), **arguments, routers=["round_robin", "prefix_aware"]).text()
    one = simulations(GROUPED[:9], SETTING, UnitCost(), **arguments, routers=["round_robin"]).text()
    assert "router" in several.splitlines()[0] and "prefix_aware" in several and "router" not in one.splitlines()[0]
