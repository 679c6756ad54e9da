"""Checkers of lesson 14: times of a request, a step under a budget, preemption, admission."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from random import Random
from typing import Any

from roseinfer.stage import Stage

from ..exercises.drawn import Comparison, Expected, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.wrong import Wrong
from .admission_checks import require_careful

# 14.3


def _gaps(finish: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(finish)]


def _tpot(arrival: int, first_scheduled: int, finish: list[int]) -> float:
    return (finish[-1] - finish[0]) / (len(finish) - 1) if len(finish) > 1 else 0


TIMES = {
    "waiting_time": Expected(
        lambda arrival, first, finish: first - arrival,
        {
            "written the other way round, as the post has it, it is never above 0": lambda a, first, finish: a - first,
            "the wait is over when its first step is scheduled, not when its first token is there": (
                lambda a, first, finish: finish[0] - a
            ),
            "that is how long its prompt took": lambda a, first, finish: finish[0] - first,
        },
    ),
    "ttft": Expected(
        lambda arrival, first, finish: finish[0] - arrival,
        {
            "a request in the queue waits for its first token, too: it counts from the arrival": (
                lambda a, first, finish: finish[0] - first
            ),
            "that is the last token, not the first": lambda a, first, finish: finish[-1] - a,
        },
    ),
    "tpot": Expected(
        _tpot,
        {
            "n tokens have n - 1 gaps between them": lambda a, first, finish: (finish[-1] - finish[0]) / len(finish),
            "the time to the first token is no gap between two tokens": lambda a, first, finish: (
                (finish[-1] - a) / len(finish)
            ),
            "the mean, not the sum": lambda a, first, finish: finish[-1] - finish[0],
            "the mean of the gaps, not the one in the middle": lambda a, first, finish: (
                sorted(_gaps(finish))[len(finish[1:]) // 2] if finish[1:] else 0
            ),
        },
    ),
    "longest_itl": Expected(
        lambda arrival, first, finish: max(_gaps(finish), default=0),
        {
            "the time to the first token is no gap between two tokens": lambda a, first, finish: max(
                _gaps([a, *finish])
            ),
            "the longest gap, not the mean": _tpot,
            "the longest of all, not the last": lambda a, first, finish: (_gaps(finish) or [0])[-1],
        },
    ),
}


def _draw_request(rng: Random) -> tuple[float, float, list[float]]:
    longest, unit = rng.choice(((9, 1), (9, 1), (5000, 1), (9, 0.25)))  # seconds need not be whole
    arrival, wait, *gaps = (unit * rng.randint(1, longest) for _ in range(3 + rng.randint(0, 5)))
    return arrival, arrival + wait, list(accumulate(gaps, initial=arrival + wait))[1:]


REQUESTS = [(0, 0, [1]), (2, 5, [7]), (1, 3, [4, 5]), (0, 1, [2, 9, 10]), *draw(_draw_request)]

register("14.3", Comparison(REQUESTS, TIMES, inputs("arrival", "first_scheduled", "finish")))


# 14.1


def next_step(left: list[int], budget: int, take: Callable[[int, int], int] = min, stop: bool = False) -> list[int]:
    """Plan the new tokens of each sequence: decodes first, then prompts in order.

    left: tokens of each sequence that are not cached. take: how much a prompt gets, of what it needs and the room.
    stop: give nothing to the prompts after the first that does not get all.
    """
    num_new = [int(n == 1) for n in left]
    room = budget - sum(num_new)
    for i, n in enumerate(left):
        if n > 1:
            num_new[i] = take(n, room)
            room -= num_new[i]
            if stop and num_new[i] < n:
                break
    return num_new


def _in_order(left: list[int], budget: int) -> list[int]:
    """Plan strictly in order, so that decodes have no precedence over prompts."""
    num_new: list[int] = []
    for n in left:
        num_new.append(min(budget - sum(num_new), n))
    return num_new


def _all_or_nothing(need: int, room: int) -> int:
    return need if need <= room else 0


def _shortest_first(left: list[int], budget: int) -> list[int]:
    order = sorted(range(len(left)), key=lambda i: left[i])
    found = next_step([left[i] for i in order], budget)
    return [found[order.index(i)] for i in range(len(left))]


def _shared(left: list[int], budget: int) -> list[int]:
    prompts = sum(n > 1 for n in left)
    share = (budget - left.count(1)) // prompts if prompts else 0
    return [1 if n == 1 else min(share, n) for n in left]


def _only_first(left: list[int], budget: int) -> list[int]:
    prompts = [i for i, n in enumerate(left) if n > 1]
    return [0 if i in prompts[1:] else n for i, n in enumerate(next_step(left, budget))]


def _of_left(rule: Callable[[list[int], int], list[int]]) -> Callable[..., list[int]]:
    return lambda cached, lengths, budget: rule([n - c for c, n in zip(cached, lengths, strict=True)], budget)


STEP_MISTAKES: dict[str, Callable[..., list[int]]] = {
    "a sequence that decodes goes first, wherever it stands; a prompt before it took its token": _of_left(_in_order),
    "a prompt that does not fit is cut, and gets what is left": _of_left(partial(next_step, take=_all_or_nothing)),
    "a prompt that does not fit is cut; no other is left out for it": _of_left(
        partial(next_step, take=_all_or_nothing, stop=True)
    ),
    "decode tokens count against the budget, too": _of_left(
        lambda left, budget: next_step(left, budget + left.count(1))
    ),
    "in their order, not the shortest first": _of_left(_shortest_first),
    "the first in order gets all that it needs: equal shares cut every prompt": _of_left(_shared),
    "each gets what it needs, not the whole budget": _of_left(partial(next_step, take=lambda need, room: room)),
    "cached tokens are not computed again": lambda cached, lengths, budget: next_step(
        [1 if n - c == 1 else n for c, n in zip(cached, lengths, strict=True)], budget
    ),
    "one prompt that fits leaves room for the next": _of_left(_only_first),
    "the budget bounds the step": _of_left(lambda left, budget: left),
}


def _draw_step(rng: Random) -> tuple[list[int], list[int], int]:
    cached, lengths = [], []
    longest = rng.choice((12, 12, 12, 5000))
    for _ in range(rng.randint(1, 5)):
        length = rng.randint(1, longest)
        lengths.append(length)
        cached.append(rng.choice((length - 1, 0, 0, rng.randint(0, length - 1))))
    return cached, lengths, rng.randint(len(lengths), len(lengths) + longest + 2)


STEPS = [
    ([0], [4], 8),
    ([3], [4], 1),
    ([0, 3], [6, 4], 4),
    ([0, 0], [3, 3], 5),
    ([2, 0], [8, 2], 4),
    ([0, 0], [5, 1], 3),
    ([0] * 40, [3] * 40, 60),
    ([7] * 40, [8] * 40, 40),
    *draw(_draw_step),
]

register("14.1", Comparison(STEPS, Expected(_of_left(next_step), STEP_MISTAKES), inputs("cached", "lengths", "budget")))


# 14.2


def _victims(
    lengths: list[int],
    block_size: int,
    num_blocks: int,
    *,
    needs: Callable[[int, int], int] = lambda n, size: -(-n // size),
    pick: Callable[[list[int], list[int]], int] = lambda running, lengths: running[-1],
    too_many: Callable[[int, int], bool] = lambda needed, blocks: needed > blocks,
) -> list[int]:
    """List the preempted sequences, in the order in which they are preempted."""
    running, gone = list(range(len(lengths))), []
    while running and too_many(sum(needs(lengths[i], block_size) for i in running), num_blocks):
        gone.append(pick(running, lengths))
        running.remove(gone[-1])
    return gone


def _lost(lengths: list[int], block_size: int, num_blocks: int) -> int:
    return sum(lengths[i] - 1 for i in _victims(lengths, block_size, num_blocks))


VICTIM_MISTAKES: dict[str, Callable[..., Any]] = {
    "the oldest goes on: the youngest gives way, or no sequence would ever be done": partial(
        _victims, pick=lambda running, lengths: running[0]
    ),
    "the youngest goes, not the one with the most blocks": partial(
        _victims, pick=lambda running, lengths: max(running, key=lambda i: lengths[i])
    ),
    "the youngest goes, not the one with the fewest blocks": partial(
        _victims, pick=lambda running, lengths: min(reversed(running), key=lambda i: lengths[i])
    ),
    "in the order in which they go: the youngest first": lambda *case: _victims(*case)[::-1],
    "a block that is begun is a block: round up": partial(_victims, needs=lambda n, size: n // size),
    "the step writes the last token, too: it may need a block": partial(
        _victims, needs=lambda n, size: -(-(n - 1) // size)
    ),
    "a pool that is just full is large enough": partial(_victims, too_many=lambda needed, blocks: needed >= blocks),
    "one may not be enough": lambda *case: _victims(*case)[:1],
    "preempt no more than needed: the older ones continue": lambda lengths, size, blocks: (
        list(range(len(lengths)))[:0:-1] if _victims(lengths, size, blocks) else []
    ),
    "empty slots of a block cannot be used by another sequence": lambda lengths, size, blocks: _victims(
        lengths, 1, blocks * size
    ),
}
LOSS_MISTAKES: dict[str, Callable[..., Any]] = {
    "the last token of a sequence was not computed yet, so it is not lost": lambda lengths, *sizes: sum(
        lengths[i] for i in _victims(lengths, *sizes)
    ),
    "of everyone that goes, not of the last one alone": lambda lengths, *sizes: sum(
        lengths[i] - 1 for i in _victims(lengths, *sizes)[-1:]
    ),
    "tokens, not blocks": lambda lengths, size, blocks: sum(
        -(-lengths[i] // size) for i in _victims(lengths, size, blocks)
    ),
    "of those that go, not of those that stay": lambda lengths, *sizes: sum(
        n - 1 for i, n in enumerate(lengths) if i not in _victims(lengths, *sizes)
    ),
    "a sequence that stays keeps its cached tokens": lambda lengths, *sizes: (
        sum(n - 1 for n in lengths) if _victims(lengths, *sizes) else 0
    ),
}


def _draw_pool(rng: Random) -> tuple[list[int], int, int]:
    """Draw a pool that holds what is cached and in which the oldest sequence fits, as it always is in an engine."""
    size, count = rng.choice(((1, 5), (2, 5), (3, 5), (4, 8), (16, 20)))
    lengths = [_draw_length(rng, size) for _ in range(rng.randint(2, count))]
    held, needed = (sum(-(-n // size) for n in some) for some in ([n - 1 for n in lengths], lengths))
    return lengths, size, max(held, -(-lengths[0] // size), needed - rng.choice((0, 1, 2, 3, count)))


def _draw_length(rng: Random, size: int) -> int:
    """Draw a length whose last token begins a block, fills one, or does neither."""
    edge = rng.randint(1, 3) * size
    return rng.choice((edge + 1, edge + 1, max(2, edge), rng.randint(2, 3 * size + 2)))


POOLS = [
    ([4], 4, 1),
    ([5, 4], 4, 2),
    ([5, 4], 4, 3),
    ([5, 5], 4, 3),
    ([3, 9, 2], 4, 4),
    ([5, 5, 5, 5], 4, 4),
    *draw(_draw_pool, 80),
]

ROOM = {"preempted": Expected(_victims, VICTIM_MISTAKES), "lost": Expected(_lost, LOSS_MISTAKES)}
register("14.2", Comparison(POOLS, ROOM, inputs("lengths", "block_size", "num_blocks")))


# 14.4


@exercise("14.4")
def look_ahead(answer: type[Stage]) -> None:
    bases = [base for base in getattr(answer, "__mro__", ()) if base.__dict__.get("name") == "s14_token_budget"]
    if not bases or answer is bases[0]:
        raise Wrong(f"expected a subclass of TokenBudget, got {getattr(answer, '__name__', repr(answer))}")
    require_careful(answer, bases[0])
