"""Prefill and decode on separate replicas: DistServe (Zhong et al., 2024), Splitwise (Patel et al., 2024)."""

from __future__ import annotations

from heapq import heappush

from roseinfer.arguments import require_count
from roseinfer.arrivals import Arrival
from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import policy_for
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import Sequence

from .cluster import Cluster
from .cost import Cost
from .link import Link
from .replica import NEW_TOKEN, EngineSetting, Replica, SimulatedRequest

ASSUMPTIONS = (
    "Shapes such as 2:6: the first replicas prefill, and give the first token. The K and V of the prompt then go to "
    "the replica with the fewest tokens of those that decode.",
    "A prefill replica sends one prompt at a time. Its blocks are free as soon as the first token is there, and the "
    "memory of K and V under way is not counted. The other side receives any number at a time.",
    "Replicas that decode have no prefix cache: all of a prompt's K and V are sent, whatever is there already. A "
    "sequence that is preempted there is computed again there.",
)


class ReceivedBlocks(BlockManager):
    """Blocks of a replica that decodes: a sequence brings its prompt's K and V when it joins for the first time."""

    def __init__(self, setting: EngineSetting) -> None:
        blocks_each = min(setting.num_blocks, -(-setting.max_model_len // setting.block_size))
        super().__init__(setting.num_blocks, setting.block_size, setting.max_num_seqs, blocks_each)
        self.received: set[int] = set()  # by seq_id, until they join

    def admit(self, seq: Sequence) -> int | None:
        num_cached = super().admit(seq)
        if num_cached is None or seq.seq_id not in self.received:
            return num_cached
        self.received.remove(seq.seq_id)
        return len(seq) - 1


class DecodeReplica(Replica):
    """A replica whose sequences come with their prompts computed, and with their first token."""

    def __init__(self, index: int, setting: EngineSetting, cost: Cost, cluster: DisaggregatedCluster) -> None:
        super().__init__(index, setting, cost, cluster.decode_ended)
        self._blocks = ReceivedBlocks(setting)
        self.scheduler = Scheduler(self._blocks, setting.step_tokens, (), policy_for(setting.scheduling_policy))

    def receive(self, request: SimulatedRequest) -> None:
        """Queue a request that was handed over. Its steps are added to the times that it already has."""
        arrival = request.arrival
        tokens = [NEW_TOKEN] * (arrival.prompt_len + 1)
        seq, times = self._queue(request, tokens, arrival.output_len - 1)
        times.steps = request.times.steps
        self._blocks.received.add(seq.seq_id)


class DisaggregatedCluster(Cluster):
    """A cluster whose first num_prefill replicas prefill, and whose others decode. See ASSUMPTIONS.

    kv_bytes: what is handed over on the link for each token. Raises ValueError for fewer than one replica of either
    kind.
    """

    def __init__(
        self,
        setting: EngineSetting,
        cost: Cost,
        num_replicas: int,
        router: str = "round_robin",
        seed: int = 0,
        *,
        num_prefill: int,
        kv_bytes: int,
        link: Link,
    ) -> None:
        require_count("num_prefill", num_prefill, at_least=1, at_most=num_replicas - 1)
        self.num_prefill, self.kv_bytes, self.link = num_prefill, kv_bytes, link
        self._link_free = [0.0] * num_prefill  # when each prefill replica has sent all that it was given
        self._sent: list[SimulatedRequest] = []
        super().__init__(setting, cost, num_replicas, router, seed)

    def decode_ended(self, request: SimulatedRequest, now: float) -> None:
        request.times.ended = now

    def _make_replicas(self, setting: EngineSetting, cost: Cost, num_replicas: int) -> list[Replica]:
        prefill = super()._make_replicas(setting, cost, self.num_prefill)
        self._decode = [DecodeReplica(i, setting, cost, self) for i in range(self.num_prefill, num_replicas)]
        return [*prefill, *self._decode]

    def _entry_replicas(self) -> list[Replica]:
        return self.replicas[: self.num_prefill]

    def _tokens_at_entry(self, arrival: Arrival) -> int:
        return 1

    def _request_ended(self, request: SimulatedRequest, now: float) -> None:
        """Send a prompt's K and V, unless the request has all of its tokens."""
        if request.arrival.output_len == 1:
            return
        request.times.ended = None
        begins = max(now, self._link_free[request.replica])
        ends = begins + self.link.seconds(request.arrival.prompt_len * self.kv_bytes)
        self._link_free[request.replica] = ends
        self._sent.append(request)
        heappush(self._events, (ends, -len(self._sent)))

    def _handed_over(self, index: int) -> None:
        request = self._sent[-index - 1]
        replica = min(self._decode, key=lambda replica: replica.load)
        request.decoded_by = replica.index
        self._wake(replica)
        replica.receive(request)
