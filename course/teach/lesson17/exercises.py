"""Checkers of lesson 17: a key, an abort that frees everything, a bound on overtaking, a policy of your own."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.policy_keys import require_keys
from ..exercises.wrong import Wrong
from .policy_checks import mean_latency, require_check, require_rounds, why_too_long

# 17.1


class Waiting(NamedTuple):
    """A queued request, as a key of exercise 17.1 gets it."""

    arrival: int
    priority: int
    prompt_len: int
    output_len: int
    made: int


def _order(answer: Callable[..., Any], waiting: list[Waiting], round_size: int) -> list[int]:
    """Return the arrivals in the order of the keys."""
    try:
        return [one.arrival for one in sorted(waiting, key=lambda one: answer(*one, round_size))]
    except (TypeError, ValueError, RuntimeError) as error:  # for keys that are arrays, NumPy's and torch's
        if "not supported between" not in str(error) and "is ambiguous" not in str(error):
            raise
        raise Wrong(f"keys must be comparable with each other: {error}") from error


FAR = (200, 10**4, 10**7, 10**12)


def _draw_queue(rng: Random) -> tuple[list[Waiting], int]:
    """Draw a queue, in which some numbers may be far from the others."""
    far = rng.choice((0, 0, 0, *FAR))
    arrivals = [n + rng.choice((0, far)) for n in rng.sample(range(9), rng.randint(2, 6))]
    waiting = []
    for arrival in arrivals:
        output_len = rng.choice((2, 2, 3, 5, 8, 8)) + rng.choice((0, far))
        made = rng.choice((0, 0, rng.randrange(output_len)))
        waiting.append(Waiting(arrival, rng.choice((0, 0, 0, 1, -1, far, -far)), rng.randint(1, 9), output_len, made))
    return waiting, rng.choice((3, 4, 9, 2 * far + 4))


def _queue(*rows: tuple[int, int, int]) -> list[Waiting]:
    """Make requests with a prompt of one token and nothing made, from arrival, priority and output_len."""
    return [Waiting(arrival, priority, 1, output_len, 0) for arrival, priority, output_len in rows]


QUEUES = [
    (_queue((1, 0, 3), (0, 0, 3)), 4),
    (_queue((3, 0, 2), (4, 0, 5)), 4),
    *((_queue((n, 0, 5), (2 * n, 0, 5 + n)), n) for n in (200, 10**6)),  # fields of one number would overflow
    *((_queue((0, 0, n), (1, 0, n + 1)), 4) for n in FAR),  # numbers that are equal as 32-bit floats
    *((_queue((0, p, 5), (1, p - 1, 5)), 4) for n in FAR for p in (n, -n)),
    *((_queue((n + 1, 0, 5), (n, 0, 5)), 4 * n) for n in FAR),
    *draw(_draw_queue, 120),
]
ROUND, LONGEST = "arrival // round_size", "-to_come"
KEY_MISTAKES = {
    "there are no rounds: a request with few tokens may wait without end": {f" {ROUND},": ""},
    "priority goes before rounds": {f"priority, {ROUND}": f"{ROUND}, priority"},
    "the lower priority goes first": {"return priority": "return -priority"},
    "priority goes before everything else": {"return priority, ": "return "},
    "that is shortest first: the smallest key goes first": {LONGEST: "to_come"},
    "tokens that are made already do not come again": {"output_len - made": "output_len"},
    "of equals, the one that came first: the queue has no order before": {f"{LONGEST}, arrival": LONGEST},
    "a round is round_size arrivals in a row, not every round_size-th": {"//": "%"},
    "arrivals count from 0, so the first round ends with arrival round_size - 1": {
        ROUND: "(arrival + 1) // round_size"
    },
}
ORDERED = as_solved("17.1", KEY_MISTAKES, call=_order)
register("17.1", Comparison(QUEUES, ORDERED, inputs("waiting", "round_size"), _order))

# 17.4

ABORT, LOOP = "scheduler.abort(seq)", "[*scheduler.running, *scheduler.waiting]"
BY_HAND = "(scheduler.running.remove(seq), scheduler.blocks.free(seq.seq_id))"
ABORT_MISTAKES = {
    "an id never equals a set, so abort was called for no request: ask with `in`": {"in request": "== request"},
    "abort removes elements from the list that your loop walks over: walk over a copy": {
        LOOP: "(seq for queue in (scheduler.running, scheduler.waiting) for seq in queue)"
    },
    "requests that run must end, too": {"*scheduler.running, ": ""},
    "a queued request must end, too": {", *scheduler.waiting": ""},
    "those that were not named stay": {"in request_ids:": "in request_ids or seq in scheduler.waiting:"},
    "finish_reason alone ends nothing: abort changes all that belongs to a request": {
        ABORT: 'seq.finish_reason = "abort"'
    },
    "the lists belong to the scheduler: abort changes all that goes with them": {
        ABORT: f"{BY_HAND} if seq in scheduler.running else {ABORT}"
    },
}


def _abort(answer: Callable[..., Any], count: int, named: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Abort some requests after some steps: what the scheduler has then, and the tokens of all requests at the end.

    Of more than three requests the first has ended by then.
    """
    scheduler = Scheduler(BlockManager(40, 4, 4, 40), 40, ())
    lengths = [1 if i == 0 and count > 3 else 6 + i for i in range(count)]
    seqs = [Sequence([7] * (3 + i), SamplingParams(max_tokens=n, ignore_eos=True)) for i, n in enumerate(lengths)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(steps):
        _step(scheduler)
    answer(scheduler, {seqs[i].seq_id for i in named})
    state = {
        "running": [seqs.index(seq) for seq in scheduler.running],
        "waiting": [seqs.index(seq) for seq in scheduler.waiting],
        "blocks": [len(scheduler.blocks.of(seq.seq_id)) if seq.seq_id in scheduler.blocks else 0 for seq in seqs],
        "finish_reasons": [seq.finish_reason for seq in seqs],
        "tokens": [len(seq) for seq in seqs],
    }
    for _ in range(100):
        if scheduler.has_work:
            _step(scheduler)
    scheduler.blocks.check()
    return state | {"tokens at the end": [len(seq) for seq in seqs]}


def _step(scheduler: Scheduler) -> None:
    step = scheduler.schedule()
    assert step is not None, "it has work"
    scheduler.commit(step, [0] * len(step.chosen))


def _explain_state(got: dict[str, Any], want: dict[str, Any]) -> str | None:
    for name, right in want.items():
        if got[name] != right:
            return f"{name} afterwards: {got[name]}, expected {right}"
    return None


def _draw_abort(rng: Random) -> tuple[int, tuple[int, ...], int]:
    count = rng.randint(2, 7)
    return count, tuple(sorted(rng.sample(range(count), rng.randint(1, count)))), rng.randint(1, 3)


def _describe_abort(count: int, named: tuple[int, ...], steps: int) -> str:
    return f"{count} requests, of which at most 4 run at a time, aborted after step {steps}: {list(named)}"


ABORTS = [(2, (1,), 1), (2, (0, 1), 1), *draw(_draw_abort, 60)]
ABORTED = as_solved("17.4", ABORT_MISTAKES, _explain_state, _abort)
register("17.4", Comparison(ABORTS, ABORTED, _describe_abort, _abort))

# 17.2


def _draw_bounded(rng: Random) -> tuple[list[int], list[int], int]:
    count, bound, longest = rng.choice(((6, 3, 9), (6, 3, 9), (20, 300, 10**7)))
    count, bound = rng.randint(1, count), rng.randint(0, bound)
    overtaken = sorted((rng.randint(0, bound) for _ in range(count)), reverse=rng.random() < 0.8)
    return [rng.randint(1, longest) for _ in range(count)], overtaken, bound


BOUNDED = [([3, 1], [2, 0], 2), ([3, 3], [0, 0], 2), ([5, 4, 1], [2, 3, 3], 9), *draw(_draw_bounded, 100)]
MAY_GO, REACHED = "may_go.append(place)", "times >= bound"
SHORTEST = "min(may_go, key=lambda place: prompt_lens[place])"
BOUND_MISTAKES = {
    "a request has been overtaken bound times already": {REACHED: "False"},
    "a request that came before it may still go first: it overtakes none": {"break": "return place"},
    "overtaken bound times is allowed; only one time more is not": {REACHED: "times >= bound - 1"},
    "of those that may go, the shortest, not the longest": {"min(": "max("},
    "of equals, the one that came first": {"min(may_go": "min(may_go[::-1]"},
    "that is first come: as long as no request has reached the bound, the shortest may go": {SHORTEST: "0"},
    "return the index, not the length of the prompt": {SHORTEST: "min(prompt_lens[place] for place in may_go)"},
    "the one that has reached the bound may go too": {MAY_GO: f"may_go.append(max(0, place - ({REACHED})))"},
}
NEXT = as_solved("17.2", BOUND_MISTAKES)
register("17.2", Comparison(BOUNDED, NEXT, inputs("prompt_lens", "overtaken", "bound")))

# 17.3

GAIN = 0.1  # of first come's mean latency


@exercise("17.3")
def own_policy(answer: type[Policy]) -> None:
    if not (isinstance(answer, type) and issubclass(answer, Policy)):
        raise Wrong(f"expected a subclass of Policy, got {answer!r}")
    policy = answer()
    require_keys(policy)
    require_rounds(policy)
    require_check(policy)
    for seed in range(4):
        found, first_come = (mean_latency(seed, p) for p in (answer(), "fcfs"))
        if found > (1 - GAIN) * first_come:
            raise Wrong(
                f"workload {seed}: a mean of {found:.1f} steps from arrival to last token, expected at most "
                f"{(1 - GAIN) * first_come:.1f}; first come, first served has {first_come:.1f}{why_too_long(policy)}"
            )
