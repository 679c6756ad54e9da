"""Checkers of lesson 17: a key, an abort that frees everything, a bound on overtaking, a policy of your own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from roseinfer.arguments import counted
from roseinfer.engine.block_manager import BlockManager
from roseinfer.engine.policies import Policy
from roseinfer.engine.scheduler import Scheduler
from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.policy_keys import require_keys
from ..exercises.wrong import Wrong
from .policy_checks import mean_latency, require_check, require_rounds, why_too_long

# 17.1

Waiting = tuple[int, int, int, int, int]  # arrival, priority, prompt_len, output_len, made
Key = Callable[..., Any]  # of these and round_size


def _order(answer: Key, waiting: list[Waiting], round_size: int) -> list[int]:
    try:
        return [w[0] for w in sorted(waiting, key=lambda w: answer(*w, round_size))]
    except (TypeError, ValueError, RuntimeError) as error:  # for keys that are arrays, NumPy's and torch's
        if "not supported between" not in str(error) and "is ambiguous" not in str(error):
            raise
        raise Wrong(f"keys must be comparable with each other: {error}") from error


def _describe_queue(waiting: list[Waiting], round_size: int) -> str:
    names = ("arrival", "priority", "prompt_len", "output_len", "made")
    rows = ["(" + ", ".join(f"{n}={x}" for n, x in zip(names, w, strict=True)) + ")" for w in waiting]
    return f"waiting: {'; '.join(rows)}, round_size={round_size}: arrivals in the order of your keys"


def _draw_queue(rng: Random) -> tuple[list[Waiting], int]:
    far = rng.choice((0, 0, 0, *FAR))  # of some numbers from the others
    arrivals = [n + rng.choice((0, far)) for n in rng.sample(range(9), rng.randint(2, 6))]
    outputs = [n + rng.choice((0, far)) for n in rng.sample((2, 2, 3, 5, 8, 8), len(arrivals))]
    waiting = [
        (at, rng.choice((0, 0, 0, 1, -1, 2, far, -far)), rng.randint(1, 9), n, rng.choice((0, 0, rng.randrange(n))))
        for at, n in zip(arrivals, outputs, strict=True)
    ]
    return waiting, rng.choice((3, 4, 9))


FAR = (200, 10**4, 10**7, 10**12)


QUEUES = [
    ([(1, 0, 2, 3, 0), (0, 0, 2, 3, 0)], 4),
    ([(0, 0, 1, 2, 0), (1, 0, 1, 5, 0)], 4),
    ([(0, 1, 1, 2, 0), (1, 0, 1, 2, 0)], 4),
    ([(3, 0, 1, 2, 0), (4, 0, 1, 5, 0)], 4),
    *(([(n, 0, 1, 5, 0), (2 * n, 0, 1, 5 + n, 0)], n) for n in (200, 10**6)),  # fields of one number would overflow
    *(([(0, 0, 1, 4, 0), (1, 0, 1, 5, 0), (n, 0, 1, 6, 0)], 2 * n) for n in FAR),
    *(([(0, 1, 1, 5 + n, 0), (n, 0, 1, 5, 0), (n + 1, 0, 1, 6, 1)], 4) for n in FAR),
    *(([(0, p, 1, 5, 0), (1, p - 1, 1, 5, 0)], 4) for n in FAR for p in (n, -n)),
    *(([(0, 0, 1, n, 0), (1, 0, 1, n + 1, 0)], 4) for n in FAR),  # numbers that are equal as 32-bit floats
    *(([(n + 1, 0, 1, 5, 0), (n, 0, 1, 5, 0)], 4 * n) for n in FAR),
    *draw(_draw_queue, 80),
]
ROUND, LONGEST = "arrival // round_size", "-to_come"
KEY_MISTAKES = {
    "there are no rounds: a request with few tokens may wait without end": {f" {ROUND},": ""},
    "priority goes before rounds": {f"priority, {ROUND}": f"{ROUND}, priority"},
    "the lower priority goes first": {"return priority": "return -priority"},
    "priority goes before everything else": {"return priority, ": "return "},
    "that is shortest first: the smallest key goes first": {LONGEST: "to_come"},
    "tokens that are made already do not come again": {"output_len - made": "output_len"},
    "of equals, the one that came first": {f"{LONGEST}, arrival": f"{LONGEST}, -arrival"},
    "of equals, the one that came first: the queue has no order before": {f"{LONGEST}, arrival": LONGEST},
    "a round is round_size arrivals in a row, not every round_size-th": {"//": "%"},
    "arrivals count from 0, so the first round ends with arrival round_size - 1": {
        ROUND: "(arrival + 1) // round_size"
    },
    "within a round the longest output goes first, not the first that came": {f"{LONGEST}, ": ""},
}

register("17.1", Comparison(QUEUES, as_solved("17.1", KEY_MISTAKES, call=_order), _describe_queue, call=_order))

# 17.4

SIZE = 4  # tokens of a block


@exercise("17.4")
def abort_that_frees_everything(answer: Callable[..., Any]) -> None:
    require_all(ABORTS, partial(_judge_abort, answer), _describe_abort)


def _draw_abort(rng: Random) -> tuple[int, tuple[int, ...], int]:
    count = rng.randint(2, 7)
    return count, tuple(sorted(rng.sample(range(count), rng.randint(1, count)))), rng.randint(1, 3)


ABORTS = [(2, (1,), 1), (2, (0, 1), 1), (3, (0, 1, 2), 1), (5, (4,), 1), (4, (0,), 3), *draw(_draw_abort)]


def _describe_abort(count: int, named: tuple[int, ...], steps: int) -> str:
    return f"{count} requests, {min(count, 4)} of them running, aborted after step {steps}: {list(named)}"


def _judge_abort(answer: Callable[..., Any], count: int, named: tuple[int, ...], steps: int) -> None:
    scheduler = Scheduler(BlockManager(40, SIZE, 4, 40), 40, ())
    lengths = [1 if i == 0 and count > 3 else 6 + i for i in range(count)]  # the first has ended, where there are many
    seqs = [Sequence([7] * (3 + i), SamplingParams(max_tokens=n, ignore_eos=True)) for i, n in enumerate(lengths)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(steps):
        _step(scheduler)
    asked = [seqs[i] for i in named if not seqs[i].finish_reason]
    others = [seq for i, seq in enumerate(seqs) if i not in named and not seq.finish_reason]
    ended = [(seq, seq.finish_reason) for seq in seqs if seq.finish_reason]
    ids = {seqs[i].seq_id for i in named}
    go_on = [seq for seq in scheduler.running if seq in others]
    tokens = [list(seq.token_ids) for seq in seqs]
    aborted = _watch_abort(scheduler)
    answer(scheduler, set(ids))
    _require_ended(scheduler, seqs, asked, aborted)
    if changed := [i for i, seq in enumerate(seqs) if seq.token_ids != tokens[i]]:
        raise Wrong(f"the tokens of requests {changed} have changed, expected the same: an abort adds and removes none")
    for seq in others:
        if seq not in scheduler or seq.finish_reason:
            raise Wrong(f"request {seqs.index(seq)} was not named, and is gone: expected it to stay")
    if scheduler.num_preemptions or scheduler.running != go_on:
        before, after = ([seqs.index(seq) for seq in some] for some in (go_on, scheduler.running))
        raise Wrong(f"now requests {after} run, expected {before}, which were not named: leave the others alone")
    if any(seq.finish_reason != reason for seq, reason in ended):
        raise Wrong("request 0 had ended before, by its length: expected finish_reason='length' as before")
    for _ in range(100):
        if scheduler.has_work:
            _step(scheduler)
    if late := [i for i, seq in enumerate(seqs) if seq in others and len(seq.output_ids) != lengths[i]]:
        raise Wrong(f"requests {late} did not get all of their tokens afterwards, expected so: they were not named")
    scheduler.blocks.check()


def _watch_abort(scheduler: Any) -> list[Sequence]:
    """Return a list that gets each sequence for which abort is called from now on."""
    called, abort = [], scheduler.abort

    def watched(seq: Sequence) -> None:
        called.append(seq)
        abort(seq)

    scheduler.abort = watched
    return called


def _require_ended(scheduler: Scheduler, seqs: list[Sequence], asked: list[Sequence], aborted: list[Sequence]) -> None:
    if still := [seqs.index(seq) for seq in asked if seq in scheduler.running]:
        raise Wrong(f"requests {still} still run, {_why_they_run(seqs, aborted, still)}")
    for seq in asked:
        number = seqs.index(seq)
        if seq.seq_id in scheduler.blocks:
            blocks = len(scheduler.blocks.of(seq.seq_id))
            raise Wrong(
                f"request {number} has left, and its {counted(blocks, 'block', 'is/are')} not free for other requests"
            )
        if seq in scheduler.waiting:
            raise Wrong(f"request {number} is still queued, and will run later")
        if seq in scheduler or seq.finish_reason != "abort":
            raise Wrong(
                f"request {number} is in neither list, and the scheduler has not ended it (finish_reason="
                f"{seq.finish_reason!r}): the lists belong to the scheduler; abort changes all that goes with them"
            )


def _why_they_run(seqs: list[Sequence], aborted: list[Sequence], still: list[int]) -> str:
    if any(seqs[i].finish_reason for i in still):
        return "but finish_reason says that they have ended: abort changes all that belongs to a request"
    if not aborted:
        return (
            "and abort was called for no request, so each computes another token that no client reads. To find an id "
            "in a set, use `in`: an id never equals a set"
        )
    if all(i > 0 and seqs[i - 1] in aborted for i in still):
        return (
            "and abort was called for the request before each of them: does the loop walk over the list from which "
            "abort removes them, or end too early?"
        )
    return "and abort was not called for them"


def _step(scheduler: Scheduler) -> None:
    step = scheduler.schedule()
    assert step is not None, "it has work"
    scheduler.commit(step, [0] * len(step.chosen))


# 17.2


def _draw_bounded(rng: Random) -> tuple[list[int], list[int], int]:
    count, bound, longest = rng.choice(((6, 3, 9), (6, 3, 9), (20, 300, 10**7)))
    count, bound = rng.randint(1, count), rng.randint(0, bound)
    overtaken = sorted((rng.randint(0, bound) for _ in range(count)), reverse=rng.random() < 0.8)
    return [rng.randint(1, longest) for _ in range(count)], overtaken, bound


BOUNDED = [
    ([3], [0], 2),
    ([3, 1], [0, 0], 2),
    ([3, 1], [2, 0], 2),
    ([3, 3], [0, 0], 2),
    ([2, 5, 1], [1, 2, 0], 2),
    ([4, 2, 3, 1], [2, 2, 1, 0], 2),
    ([5, 1], [0, 0], 0),
    ([5, 4, 1], [2, 3, 3], 9),
    *draw(_draw_bounded, number=80),
]
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
    "the first that has reached the bound counts, the others come after it": {
        REACHED: f"{REACHED} > max(overtaken[place + 1 :], default=-1)"
    },
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
