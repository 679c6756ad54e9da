"""Checkers of lesson 17: a key, an abort that frees everything, a bound on overtaking, a policy of your own."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from random import Random
from typing import Any

from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.wrong import Wrong
from .policy_checks import require_check, require_gain, require_rounds
from .policy_keys import require_keys

# 17.1

Waiting = namedtuple("Waiting", ("arrival", "priority", "prompt_len", "output_len", "made"))


def _order(answer: Callable[..., Any], waiting: list[Waiting], round_size: int) -> list[int]:
    """Return the arrivals in the order of the keys."""
    keys = [answer(*one, round_size) for one in waiting]
    try:
        order = sorted(range(len(keys)), key=keys.__getitem__)
    except Exception as error:  # also of arrays, NumPy's and torch's
        raise Wrong(f"keys must be comparable with each other: {error}") from error
    return [waiting[i].arrival for i in order]


def _draw_queue(rng: Random) -> tuple[list[Waiting], int]:
    """Draw a queue, in which some numbers may be far from the others."""
    far = rng.choice((0, 0, 0, 200, 10**4, 10**7, 10**12))
    arrivals = [n + rng.choice((0, far)) for n in rng.sample(range(9), rng.randint(2, 6))]
    waiting = []
    for arrival in arrivals:
        output_len = rng.choice((2, 2, 3, 5, 8, 8)) + rng.choice((0, far))
        made = rng.choice((0, 0, rng.randrange(output_len)))
        waiting.append(Waiting(arrival, rng.choice((0, 0, 0, 1, -1, far, -far)), rng.randint(1, 9), output_len, made))
    return waiting, rng.choice((3, 4, 9, 2 * far + 4))


ROUND, LONGEST = "arrival // round_size", "-to_come"
KEY_MISTAKES = {
    "there are no rounds: a request with few tokens may wait without end": {f" {ROUND},": ""},
    "priority goes before everything else, rounds too": {f"priority, {ROUND}": f"{ROUND}, priority"},
    "the lower priority goes first": {"return priority": "return -priority"},
    "that is shortest first: the smallest key goes first": {LONGEST: "to_come"},
    "tokens that are made already do not come again": {"output_len - made": "output_len"},
    "of equals, the one that came first: the queue has no order before": {f"{LONGEST}, arrival": LONGEST},
    "a round is round_size arrivals in a row, not every round_size-th": {"//": "%"},
}
ORDERED = as_solved("17.1", KEY_MISTAKES, call=_order)
register("17.1", Comparison(draw(_draw_queue, 300), ORDERED, inputs("waiting", "round_size"), _order))

# 17.4

ABORT, LOOP = "scheduler.abort(seq)", "[*scheduler.running, *scheduler.waiting]"
ABORT_MISTAKES = {
    "an id never equals a set, so abort was called for no request: ask with `in`": {"in request": "== request"},
    "abort removes elements from the list that your loop walks over: walk over a copy": {
        LOOP: "(seq for queue in (scheduler.running, scheduler.waiting) for seq in queue)"
    },
    "requests that run must end, too": {"*scheduler.running, ": ""},
    "a queued request must end, too": {", *scheduler.waiting": ""},
    "those that were not named stay": {"in request_ids:": "in request_ids or seq in scheduler.waiting:"},
}


def _abort(answer: Callable[..., Any], count: int, named: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Abort some requests after some steps, and return what the scheduler has then.

    Of more than three requests the first has ended by then, and at most four run at a time.
    """
    scheduler = Scheduler(BlockManager(40, 4, 4, 40), 40, ())
    lengths = [1 if i == 0 and count > 3 else 6 + i for i in range(count)]
    seqs = [Sequence([7] * (3 + i), SamplingParams(max_tokens=n, ignore_eos=True)) for i, n in enumerate(lengths)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(steps):
        step = scheduler.schedule()
        assert step is not None, "it has work"
        scheduler.commit(step, [0] * len(step.chosen))
    request_ids = {seqs[i].seq_id for i in named}
    answer(scheduler, request_ids)
    scheduler.blocks.check()
    return {
        "running": [seqs.index(seq) for seq in scheduler.running],
        "waiting": [seqs.index(seq) for seq in scheduler.waiting],
        "blocks": [len(scheduler.blocks.of(seq.seq_id)) if seq.seq_id in scheduler.blocks else 0 for seq in seqs],
        "finish_reasons": [seq.finish_reason for seq in seqs],
        "tokens": [len(seq) for seq in seqs],
        "request_ids": [i for i, seq in enumerate(seqs) if seq.seq_id in request_ids],
    }


def _explain_state(got: dict[str, Any], want: dict[str, Any]) -> str | None:
    for name, right in want.items():
        if got[name] != right:
            return f"{name} afterwards: {got[name]}, expected {right}"
    return None


def _draw_abort(rng: Random) -> tuple[int, tuple[int, ...], int]:
    count = rng.randint(2, 7)
    return count, tuple(sorted(rng.sample(range(count), rng.randint(1, count)))), rng.randint(1, 3)


ABORTED = as_solved("17.4", ABORT_MISTAKES, _explain_state, _abort)
register("17.4", Comparison(draw(_draw_abort, 80), ABORTED, inputs("requests", "aborted", "after steps"), _abort))

# 17.2


def _draw_bounded(rng: Random) -> tuple[list[int], list[int], int]:
    count, bound, longest = rng.choice(((6, 3, 9), (6, 3, 9), (20, 300, 10**7)))
    count, bound = rng.randint(1, count), rng.randint(0, bound)
    overtaken = sorted((rng.randint(0, bound) for _ in range(count)), reverse=rng.random() < 0.8)
    return [rng.randint(1, longest) for _ in range(count)], overtaken, bound


MAY_GO, REACHED = "may_go.append(place)", "times >= bound"
BOUND_MISTAKES = {
    "a request has been overtaken bound times already": {REACHED: "False"},
    "a request that came before it may still go first: it overtakes none": {"break": "return place"},
    "overtaken bound times is allowed; only one time more is not": {REACHED: "times >= bound - 1"},
    "of equals, the one that came first": {"min(may_go": "min(may_go[::-1]"},
}
NEXT = as_solved("17.2", BOUND_MISTAKES)
register("17.2", Comparison(draw(_draw_bounded, 120), NEXT, inputs("prompt_lens", "overtaken", "bound")))

# 17.3


@exercise("17.3")
def own_policy(answer: type[Policy]) -> None:
    require_keys(answer)
    policy = answer()
    require_rounds(policy)
    require_check(policy)
    require_gain(answer)
