"""Link: what joins two GPUs, and what tensor parallel shards and handed-over sequences take on it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from roseinfer.arguments import require_count, require_positive
from roseinfer.sampling_params import is_number

from .cost import FloorCost
from .work import StepWork


@dataclass(frozen=True, slots=True)
class Link:
    """bytes_per_s: in one direction. latency: seconds before the first byte of a message is there.

    Raises ValueError for a bandwidth that is not above 0, and a latency below 0.
    """

    bytes_per_s: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        require_positive("bytes_per_s", self.bytes_per_s)
        if not is_number(self.latency) or not 0 <= self.latency < float("inf"):
            raise ValueError(f"latency must be a number of at least 0, got {self.latency!r}")

    def seconds(self, nbytes: float) -> float:
        """Compute the seconds of one message."""
        return self.latency + nbytes / self.bytes_per_s

    def about(self) -> str:
        return f"{self.bytes_per_s / 1e9:g} GB/s and {1e6 * self.latency:g} us a message"


@dataclass(frozen=True)
class ShardedCost:
    """The cost of a step on tensor-parallel shards (Megatron-LM: Shoeybi et al., 2019).

    It is the floor of one GPU divided by the shards, plus two all-reduces a layer, of the hidden states of the step's
    tokens. Assumptions: weights, K and V, and operations divide evenly. An all-reduce is a ring: 2 (shards - 1)
    messages one after another, each of 1 / shards of the bytes. It overlaps with nothing. The host's part of a step
    stays whole.
    """

    one: FloorCost
    shards: int
    link: Link

    @property
    def about(self) -> str:
        return (
            f"{self.one.about} On {self.shards} tensor-parallel shards: that divided by {self.shards}, and two ring "
            f"all-reduces a layer over links of {self.link.about()}, which overlap with nothing."
        )

    def seconds(self, work: StepWork) -> tuple[float, float]:
        host, device = self.one.seconds(work)
        return host, device / self.shards + self.reduce_seconds(work.num_decodes + work.prompt_tokens)

    def reduce_seconds(self, num_tokens: int) -> float:
        """Compute the seconds of all all-reduces of a step."""
        terms = self.one.terms
        message = num_tokens * terms.hidden_bytes / self.shards
        return terms.num_reductions * 2 * (self.shards - 1) * self.link.seconds(message)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "sharded floor", "one": self.one.to_dict(), "shards": self.shards, "link": asdict(self.link)}


def tensor_parallel(cost: FloorCost, shards: int, link: Link) -> ShardedCost:
    """Make the cost of a step on so many shards from its floor on one GPU. Raises ValueError for less than one."""
    require_count("shards", shards, at_least=1)
    return ShardedCost(cost, shards, link)
