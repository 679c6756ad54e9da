"""ClusterShape: how many replicas, on how many GPUs each, and whether prefill and decode are apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roseinfer.arguments import is_integer, require_count

MOST_REPLICAS, MOST_SHARDS = 4096, 64
FORM = re.compile(r"(-?\d+)(?:([x:])(-?\d+))?")
FORMS = "8 (replicas), 4x2 (replicas of 2 tensor-parallel shards), or 2:6 (2 that prefill, 6 that decode)"


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """A cluster's replicas (all of them), and its shards: GPUs of each. Raises ValueError for a count out of range.

    num_prefill: replicas that only prefill, and hand their sequences over to the others; 0 where every replica does
    both.
    """

    replicas: int
    shards: int = 1
    num_prefill: int = 0

    def __post_init__(self) -> None:
        require_count("replicas", self.replicas, at_least=1, at_most=MOST_REPLICAS)
        require_count("shards", self.shards, at_least=1, at_most=MOST_SHARDS)
        require_count("num_prefill", self.num_prefill, at_least=0, at_most=self.replicas - 1)
        if self.num_prefill and self.shards > 1:
            raise ValueError(f"shards must be 1 where prefill and decode are apart, got {self.shards}")

    @classmethod
    def of(cls, value: int | str) -> ClusterShape:
        """Return the shape that 8, "8", "4x2" or "2:6" names. Raises ValueError for any other form."""
        if is_integer(value):
            return cls(value)
        text = str(value).strip()
        if not (found := FORM.fullmatch(text)):
            raise ValueError(f"replicas {value!r}: must be of a form such as {FORMS}")
        first, sign, second = int(found[1]), found[2], int(found[3] or 1)
        try:
            if sign == ":":
                require_count("replicas that prefill", first, at_least=1)
                require_count("replicas that decode", second, at_least=1)
                return cls(first + second, num_prefill=first)
            return cls(first, second)
        except ValueError as error:
            raise ValueError(f"replicas {text!r}: {error}" if sign else str(error)) from None

    @property
    def label(self) -> str:
        """The shape as it is typed."""
        if self.num_prefill:
            return f"{self.num_prefill}:{self.replicas - self.num_prefill}"
        return f"{self.replicas}x{self.shards}" if self.shards > 1 else str(self.replicas)
