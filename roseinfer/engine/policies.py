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
    """An order within a round: arrivals 0 to ROUND - 1 of an engine, the next ROUND, and so on.

    Earlier rounds go first whatever the policy says, so a sequence is overtaken by fewer than ROUND that came later.
    """

    name: ClassVar[str]

    def check(self, params: SamplingParams) -> None:
        """Raises ValueError for a request that cannot be placed."""

    def key(self, seq: Sequence) -> int:
        """The smallest goes first, and of equals the one that came first. Must not change while a sequence waits."""
        raise NotImplementedError

    def pick(self, waiting: list[Place], room: int) -> int:
        """Which one of `waiting`, sorted by their places and not empty. room: tokens that free blocks hold."""
        return 0


class FirstCome(Policy):
    """First come, first served."""

    name = "fcfs"

    def key(self, seq: Sequence) -> int:
        return 0


class ShortestPrompt(Policy):
    """Short prompts do not wait for long ones: the least waiting on average, paid for by the long ones."""

    name = "shortest"

    def key(self, seq: Sequence) -> int:
        return seq.num_prompt_tokens


class LongestOutput(Policy):
    """Long outputs begin early, so that fewer are left alone at the end. For outputs whose lengths are known."""

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
    """The longest that free blocks have room for: no block stays idle because the first in the queue needs more.
    Best fit, as in packing bins (Johnson et al., 1974)."""

    name = "packed"

    def key(self, seq: Sequence) -> int:
        return len(seq)

    def pick(self, waiting: list[Place], room: int) -> int:
        priority, round_ = waiting[0][:2]
        at = bisect_right(waiting, (priority, round_, room, inf)) - 1
        return bisect_left(waiting, waiting[at][:3]) if at >= 0 else 0  # of equals, the first


POLICIES: dict[str, type[Policy]] = {p.name: p for p in (FirstCome, ShortestPrompt, LongestOutput, Packed)}


def policy_for(policy: str | Policy) -> Policy:
    """A policy by its name, or your own. Raises ValueError for another name."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ValueError(f"scheduling_policy must be one of {listed(POLICIES)}, or a Policy, got {policy!r}")
    return POLICIES[policy]()
