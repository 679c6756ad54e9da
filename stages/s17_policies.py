"""Stage 17, policies: a policy chooses which waiting request joins next.

What was slow:  the end of a run. First come, first served may start a long output late, and then a few requests decode
                for long in a batch that is nearly empty; a step reads all weights for few rows as for many. And when
                the first in the queue needs more blocks than are free, all others wait, and those blocks are idle.
The change:     a policy is a function from the waiting requests to one of them: first come, shortest prompt, longest
                output, the longest prompt that fits. A request's priority goes before any policy, and then its round:
                requests 0 to ROUND - 1 go before the next ROUND, so fewer than ROUND requests of equal priority can
                overtake one.
What it gives:  longest output first fills the end of a run with short outputs: fewer steps, and the same tokens. Packed
                leaves no free blocks that the prompt of a queued request would fit into.
Where it loses: an order that lets some requests join earlier lets others join later. Longest first has to know the
                lengths, which a server does not, and in a small pool it preempts long sequences. And each request that
                joins costs a search through the whole queue.

Longest first is the LPT rule (Graham, 1969); packed is best fit (Johnson et al., 1974). Post: "Scheduling and
benchmark" has longest output first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from roseinfer.arguments import listed
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams, Sequence

from .s16_overlap import Overlap

ROUND = 256

# (candidates in order of arrival; tokens that fit into the free blocks) -> the one that joins.
Policy = Callable[[list[Sequence], int], Sequence]


def first_come(waiting: list[Sequence], room: int) -> Sequence:
    return waiting[0]


def shortest(waiting: list[Sequence], room: int) -> Sequence:
    return min(waiting, key=len)  # the first of equal ones, here and below


def longest_output(waiting: list[Sequence], room: int) -> Sequence:
    return max(waiting, key=lambda seq: seq.max_len - len(seq))


def packed(waiting: list[Sequence], room: int) -> Sequence:
    """The longest prompt that fits into the free blocks; if none fits, the shortest, which then waits."""
    fitting = [seq for seq in waiting if len(seq) <= room]
    return max(fitting, key=len) if fitting else min(waiting, key=len)


POLICIES: dict[str, Policy] = {
    "fcfs": first_come, "shortest": shortest, "longest_output": longest_output, "packed": packed,
}  # fmt: skip


class Policies(Overlap):
    """Overlap whose policy chooses who joins next. policy: a name in POLICIES, or your own function.

    sizes: as in stage 16. Fewer than ROUND later sequences overtake one. A preempted sequence goes first again.
    Raises ValueError for an unknown policy.
    """

    name = "s17_policies"

    def __init__(self, model: Model, *, num_blocks: int, policy: str | Policy = "fcfs", **sizes: Any) -> None:
        super().__init__(model, num_blocks=num_blocks, **sizes)
        if not callable(policy) and (not isinstance(policy, str) or policy not in POLICIES):
            raise ValueError(f"policy must be one of {listed(POLICIES)}, or a function, got {policy!r}")
        self.policy = policy if callable(policy) else POLICIES[policy]
        self.rounds: dict[int, int] = {}  # of the sequences that have not joined yet, by seq_id
        self.num_added = 0

    def add(self, seq: Sequence) -> None:
        """Queue a sequence. Also raises ValueError where the policy needs the output's length and cannot know it."""
        if self.policy is longest_output and may_stop_early(seq.params):
            raise ValueError(
                "policy='longest_output' has to know how many tokens come: it needs ignore_eos=True and no "
                f"stop_token_ids, got ignore_eos={seq.params.ignore_eos}, stop_token_ids="
                f"{list(seq.params.stop_token_ids)}"
            )
        super().add(seq)
        self.rounds[seq.seq_id] = self.num_added // ROUND
        self.num_added += 1

    def abort(self, seq: Sequence) -> None:
        super().abort(seq)
        self.rounds.pop(seq.seq_id, None)

    def prompts(self, may_admit: bool) -> Iterator[Sequence]:
        """Yield running sequences with more than one token to compute, then those that join, in the policy's order."""
        yield from super().prompts(may_admit=False)
        while may_admit and self.waiting and self.admit(seq := self.next_in_line()):
            self.rounds.pop(seq.seq_id, None)
            yield seq

    def next_in_line(self) -> Sequence:
        """The policy's choice among the requests of the lowest priority number, and of these the earliest round."""
        first = min(map(self.rank, self.waiting))
        equals = [seq for seq in self.waiting if self.rank(seq) == first]
        return self.policy(equals, self.tables.num_free * self.block_size)

    def rank(self, seq: Sequence) -> tuple[int, int]:
        """Priority, the lowest first, and round. A preempted sequence has joined before, and goes before all rounds."""
        return seq.priority, self.rounds.get(seq.seq_id, -1)


def may_stop_early(params: SamplingParams) -> bool:
    return not params.ignore_eos or bool(params.stop_token_ids)
