"""Clusters: arrivals, a router and replicas, in order of virtual time."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from roseinfer.arguments import unknown_name
from roseinfer.arrivals import Arrival, require_order

from .cost import Cost
from .replica import EngineSetting, Replica, SimulatedRequest, prompt_of
from .routers import ROUTERS
from .shape import ClusterShape


class Cluster:
    """Replicas behind a router. requests: all that were let in, in their order. refused: the others.

    seed: of the router's random choices. admit: tells whether a request that comes now is let in, given its replica;
    None: every one is. Raises ValueError for fewer than one replica, or an unknown router.
    """

    def __init__(
        self,
        setting: EngineSetting,
        cost: Cost,
        num_replicas: int = 1,
        router: str = "round_robin",
        seed: int = 0,
        admit: Callable[[Replica], bool] | None = None,
    ) -> None:
        ClusterShape(num_replicas)
        check_router(router)
        self.replicas = self._make_replicas(setting, cost, num_replicas)
        self.setting = setting
        self.now = 0.0
        self.requests: list[SimulatedRequest] = []
        self.refused: list[Arrival] = []
        self._admit = admit
        self._entries = self._entry_replicas()
        self._router = ROUTERS[router](seed)
        # (when a replica's step ends, or an idle one wakes; which). Below 0: a handover is there.
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
            if index < 0:
                self._handed_over(index)
                continue
            replica = self.replicas[index]
            if (ends := replica.turn(self.now)) is not None:
                heappush(events, (ends, index))
            after_turn(replica)

    def _make_replicas(self, setting: EngineSetting, cost: Cost, num_replicas: int) -> list[Replica]:
        return [Replica(i, setting, cost, self._request_ended) for i in range(num_replicas)]

    def _entry_replicas(self) -> list[Replica]:
        """Return the replicas that the router chooses from: here all of them."""
        return self.replicas

    def _tokens_at_entry(self, arrival: Arrival) -> int:
        """Count the output tokens that a request gets on the replica that it comes to."""
        return arrival.output_len

    def _request_ended(self, request: SimulatedRequest, now: float) -> None:
        """Handle the last token that a request gets on a replica."""

    def _handed_over(self, index: int) -> None:
        """Handle the end of a handover. Only clusters that hand requests over have such events."""
        raise NotImplementedError

    def _arrive(self, number: int, arrival: Arrival) -> None:
        self.now = arrival.seconds
        replica = self.replicas[self._router.choose(number, arrival, self._entries)]
        if self._admit and not self._admit(replica):
            self.refused.append(arrival)
            return
        self._wake(replica)
        request = SimulatedRequest(arrival, replica.index)
        self.requests.append(request)
        replica.add(request, prompt_of(number, arrival), self._tokens_at_entry(arrival))

    def _wake(self, replica: Replica) -> None:
        """Let a replica begin a step now, if it is idle."""
        if replica.is_idle:
            heappush(self._events, (self.now, replica.index))


def check_router(router: str) -> None:
    """Raise ValueError for an unknown router."""
    if router not in ROUTERS:
        raise ValueError(f"router: unknown value {unknown_name(router, ROUTERS)}")
