"""Places: requests run in eight of them. A prompt is handed over when a place is free.

So an entry cannot run a ninth sequence: that prompt is still in the judge's process. Before the entry gets a prompt, it
knows only how long the prompt and the answer are, and a policy orders the queue by these lengths.
"""

from __future__ import annotations

from collections import abc, deque
from collections.abc import Callable, Iterator
from typing import Any

from roseinfer.arguments import is_integer
from roseinfer.blocks import OutOfBlocks
from roseinfer.engine.engine import Engine
from roseinfer.engine.policies import FirstCome, Place, Policy
from roseinfer.generate import check_startable, commit, has_room
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .bad_answer import BadAnswer, as_token_ids

PLACES = 8
Lengths = tuple[int, int]  # tokens of a prompt, and of its answer
# Told which requests have ended, with their tokens, and which begin: returns the prompts of these.
HandOver = Callable[[list[tuple[int, list[int]]], list[int]], list[list[int]]]


def run_in_places(
    made: Engine | Stage, lengths: abc.Sequence[Lengths], hand_over: HandOver
) -> Iterator[dict[int, Sequence]]:
    """Run requests to their ends. Yields the sequences of each step, by the numbers of their requests."""
    queue: Any = made if hasattr(made, "has_work") else StageQueue(made)
    waiting = Waiting(made, lengths)
    running: dict[int, Sequence] = {}
    ended: list[tuple[int, list[int]]] = []
    while waiting or running:
        begun = waiting.take(PLACES - len(running))
        if ended or begun:
            for number, prompt in zip(begun, hand_over(ended, begun), strict=True):
                running[number] = asked(prompt, lengths[number][1])
                queue.add(running[number])
        queue.step()
        yield dict(running)
        # A stage with a queue of its own may have filled a sequence with NumPy's integers, which JSON does not know.
        ended = [(n, [int(token) for token in seq.output_ids]) for n, seq in running.items() if seq.finish_reason]
        for number, _ in ended:
            del running[number]
    hand_over(ended, [])


def asked(prompt: abc.Sequence[int], max_tokens: int) -> Sequence:
    """Make a request as in every contest: greedy, and it ends with its last token only."""
    return Sequence(list(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True))


class Waiting:
    """The requests that have no place yet, in the order of an engine's policy, or first come, first served for a stage.

    Their sequences have the right lengths but no contents: every token is 0.
    """

    def __init__(self, made: Engine | Stage, lengths: abc.Sequence[Lengths]) -> None:
        self.made = made
        self.policy: Policy = made.scheduler.policy if isinstance(made, Engine) else FirstCome()
        seqs = [asked([0] * prompt_len, max_tokens) for prompt_len, max_tokens in lengths]
        self.places: list[Place] = [(0, 0, self.policy.key(seq), number, seq) for number, seq in enumerate(seqs)]
        kinds = sorted({type(place[2]).__name__ for place in self.places})
        try:
            if "NoneType" in kinds:  # a `return` is missing; equal values are never compared
                raise TypeError
            self.places.sort()
        except TypeError:
            wanted = "must return values that can be compared, such as numbers"
            raise BadAnswer(self.policy.key, f"{wanted}, got values of type {', '.join(kinds)}") from None

    def __bool__(self) -> bool:
        return bool(self.places)

    def take(self, most: int) -> list[int]:
        """Take at most `most` requests out of the queue, and return their numbers."""
        taken: list[int] = []
        room = self.made.blocks.num_free * self.made.blocks.block_size if isinstance(self.made, Engine) else 0
        while self.places and len(taken) < most:
            at = self.policy.pick(list(self.places), room)
            if not is_integer(at) or not 0 <= at < len(self.places):
                raise BadAnswer(self.policy.pick, f"must return an index from 0 to {len(self.places) - 1}, got {at!r}")
            place = self.places.pop(at)
            room -= len(place[-1])
            taken.append(place[3])
        return taken


class StageQueue:
    """Gives a stage without a queue the methods add and step. A step runs the loop of roseinfer.generate once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        check_startable(self.stage, [seq])
        self.waiting.append(seq)

    def step(self) -> None:
        while self.waiting and has_room(self.stage, self.waiting[0]):
            seq = self.waiting.popleft()
            tokens = self._made_by(self.stage.first_tokens, [seq])
            self.stage.tables.promise(seq.seq_id, seq.max_len - 1)  # the last token is returned, never cached
            commit(self.stage, [seq], tokens)
            self.running += [] if seq.finish_reason else [seq]
        if self.running:
            commit(self.stage, self.running, self._made_by(self.stage.next_tokens, self.running))
            self.running = [seq for seq in self.running if not seq.finish_reason]
        elif self.waiting:
            raise OutOfBlocks(f"sequence {self.waiting[0].seq_id} cannot start: the stage has too few blocks for it")

    def _made_by(self, method: Callable[[list[Sequence]], list[int]], seqs: list[Sequence]) -> list[int]:
        made, vocab_size = method(list(seqs)), self.stage.config.vocab_size
        tokens = as_token_ids(made, vocab_size)
        if tokens is None or len(tokens) != len(seqs):
            wanted = (
                f"must return a list with a token id from 0 to {vocab_size - 1} for each of the {len(seqs)} sequences"
            )
            raise BadAnswer(method, f"{wanted}, got {made!r:.100}")
        return tokens
