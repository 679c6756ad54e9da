"""Policies: which waiting request is next. Small classes behind one interface; the scheduler does the rest."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import inf
from typing import ClassVar

from roseinfer.arguments import listed
from roseinfer.sequence import SamplingParams, Sequence

ROUND = 256
Place = tuple[int, int, int, int, Sequence]  # priority, round, the policy's key, arrival: in a queue the smallest first


class Policy:
    """Orders waiting requests within a round: arrivals 0 to ROUND - 1 of an engine, the next ROUND, and so on.

    Earlier rounds go first for every policy, so fewer than ROUND later sequences can overtake one.
    """

    name: ClassVar[str]

    def check(self, params: SamplingParams) -> None:
        """Raise ValueError for a request that cannot be placed."""

    def key(self, seq: Sequence) -> int:
        """Return the sequence's key: the smallest goes first, and of equals the one that came first.

        A key must not change while its sequence waits.
        """
        raise NotImplementedError

    def pick(self, waiting: list[Place], room: int) -> int:
        """Return the index of the next one in `waiting`, which is sorted by place and not empty.

        room: tokens that free blocks hold.
        """
        return 0


class FirstCome(Policy):
    """Serves requests first come, first served."""

    name = "fcfs"

    def key(self, seq: Sequence) -> int:
        return 0


class ShortestPrompt(Policy):
    """Lets short prompts go before long ones: the wait is shortest on average, and the long ones pay for it."""

    name = "shortest"

    def key(self, seq: Sequence) -> int:
        return seq.num_prompt_tokens


class LongestOutput(Policy):
    """Begins long outputs early, so that fewer are left alone at the end. It needs outputs whose lengths are known."""

    name = "longest_output"

    def check(self, params: SamplingParams) -> None:
        if not params.ignore_eos or params.stop_token_ids or params.stop:
            raise ValueError(
                f"scheduling_policy={self.name!r} has to know how many tokens come: it needs ignore_eos=True and no "
                f"stop or stop_token_ids, got ignore_eos={params.ignore_eos}, stop={list(params.stop)}, "
                f"stop_token_ids={list(params.stop_token_ids)}"
            )

    def key(self, seq: Sequence) -> int:
        return len(seq) - seq.max_len


class Packed(Policy):
    """Picks the longest request that free blocks have room for, so that a large first one leaves no block idle.

    This is best fit, as in packing bins (Johnson et al., 1974).
    """

    name = "packed"

    def key(self, seq: Sequence) -> int:
        return len(seq)

    def pick(self, waiting: list[Place], room: int) -> int:
        priority, round_ = waiting[0][:2]
        at = bisect_right(waiting, (priority, round_, room, inf)) - 1
        return bisect_left(waiting, waiting[at][:3]) if at >= 0 else 0  # of equals, the first


POLICIES: dict[str, type[Policy]] = {p.name: p for p in (FirstCome, ShortestPrompt, LongestOutput, Packed)}


def policy_for(policy: str | Policy) -> Policy:
    """Return the policy of this name, or the caller's own Policy. Raises ValueError for another name."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"scheduling_policy must be one of {listed(POLICIES)}, or a Policy, got {policy!r}")
    return POLICIES[policy]()
