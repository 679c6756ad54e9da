"""Clusters: arrivals, a router and replicas, in order of virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from roseinfer.arguments import require_count, require_known
from roseinfer.arrivals import Arrival, require_order

from .cost import Cost
from .replica import EngineSetting, Replica, SimulatedRequest, prompt_of
from .routers import ROUTERS

MOST_REPLICAS = 4096


class Cluster:
    """Replicas behind a router. requests: all that were let in, in their order. refused: the others.

    admit: tells whether a request that comes now is let in, given its replica; None: every one is. Raises ValueError
    for fewer than one replica, or an unknown router.
    """

    def __init__(
        self,
        setting: EngineSetting,
        cost: Cost,
        num_replicas: int = 1,
        router: str = "round_robin",
        admit: Callable[[Replica], bool] | None = None,
    ) -> None:
        check_replicas(num_replicas)
        require_known("router", router, ROUTERS)
        self.replicas = [Replica(i, setting, cost) for i in range(num_replicas)]
        self.setting = setting
        self.now = 0.0
        self.requests: list[SimulatedRequest] = []
        self.refused: list[Arrival] = []
        self._admit = admit
        self._router = ROUTERS[router]()
        # (when a replica's step ends, or an idle one wakes; which)
        self._events: list[tuple[float, int]] = []

    def run(self, arrivals: list[Arrival], after_turn: Callable[[Replica], None] = lambda replica: None) -> None:
        """Run until every request has ended. after_turn: called with each replica that ended or began a step.

        Raises ValueError for arrivals out of order, and for one that the engines would refuse.
        """
        require_order(arrivals)
        self.setting.check_fits(arrivals)
        coming, events = 0, self._events
        while events or coming < len(arrivals):
            if coming < len(arrivals) and (not events or arrivals[coming].seconds <= events[0][0]):
                self._arrive(coming, arrivals[coming])
                coming += 1
                continue
            self.now, index = heappop(events)
            replica = self.replicas[index]
            if (ends := replica.turn(self.now)) is not None:
                heappush(events, (ends, index))
            after_turn(replica)

    def _arrive(self, number: int, arrival: Arrival) -> None:
        self.now = arrival.seconds
        replica = self.replicas[self._router.choose(number, arrival, self.replicas)]
        if self._admit and not self._admit(replica):
            self.refused.append(arrival)
            return
        if replica.is_idle:  # it begins a step now
            heappush(self._events, (self.now, replica.index))
        request = SimulatedRequest(arrival, replica.index)
        self.requests.append(request)
        replica.add(request, prompt_of(number, arrival))


def check_replicas(num_replicas: int) -> None:
    """Raise ValueError for a number of replicas out of range."""
    require_count("replicas", num_replicas, at_least=1, at_most=MOST_REPLICAS)
