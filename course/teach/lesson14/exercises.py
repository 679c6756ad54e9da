"""Checkers of lesson 14: times of a request, a step under a budget, preemption, admission."""

from __future__ import annotations

from itertools import accumulate
from random import Random

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.piece_check import register_piece
from .admission_checks import require_careful

# 14.3

TIME_MISTAKES = {
    "waiting_time": {
        "written the other way round, as the post has it, it is never above 0": {
            "first_scheduled - arrival": "arrival - first_scheduled"
        },
    },
    "ttft": {
        "a request in the queue waits for its first token, too: it counts from the arrival": {
            "finish[0] - arrival": "finish[0] - first_scheduled"
        },
    },
    "tpot": {
        "n tokens have n - 1 gaps between them": {"sum(gaps) / len(gaps)": "sum(gaps) / len(finish)"},
        "the time to the first token is no gap between two tokens": {
            "sum(gaps) / len(gaps) if gaps else 0": "(finish[-1] - arrival) / len(finish)"
        },
    },
    "longest_itl": {
        "the time to the first token is no gap between two tokens": {
            "zip(finish, finish[1:]": "zip([arrival, *finish], finish"
        },
        "the longest gap, not the mean": {"max(gaps, default=0)": "tpot"},
    },
}


def _draw_request(rng: Random) -> tuple[float, float, list[float]]:
    longest, unit = rng.choice(((9, 1), (9, 1), (5000, 1), (9, 1 / 1024)))  # seconds need not be whole
    arrival, wait, *gaps = (unit * rng.randint(0, longest) for _ in range(3 + rng.randint(0, 5)))  # equal times, too
    return arrival, arrival + wait, list(accumulate(gaps, initial=arrival + wait))[1:]


REQUESTS = [(2, 5, [7]), (0, 1, [2, 9, 10]), *draw(_draw_request)]

register(
    "14.3",
    Comparison(REQUESTS, as_solved_by_name("14.3", TIME_MISTAKES), inputs("arrival", "first_scheduled", "finish")),
)


# 14.1

STEP_MISTAKES = {
    "a sequence that decodes goes first, wherever it stands; a prompt before it took its token": {
        "1 if n == 1 else 0": "0",
        "if n > 1": "if True",
    },
    "a prompt that does not fit is cut, and gets what is left": {"min(n, room)": "n if n <= room else 0"},
    "decode tokens count against the budget, too": {"budget - sum(num_new)": "budget"},
    "the first in order gets all that it needs: equal shares cut every prompt": {
        "room = budget - sum(num_new)": "room = (budget - sum(num_new)) // max(1, len(left) - sum(num_new))",
        "            room -= num_new[i]\n": "",
    },
    "cached tokens are not computed again": {"min(n, room)": "min(lengths[i], room)"},
}


def _draw_step(rng: Random) -> tuple[list[int], list[int], int]:
    cached, lengths = [], []
    longest = rng.choice((12, 12, 12, 5000))
    for _ in range(rng.randint(1, 5)):
        length = rng.randint(1, longest)
        lengths.append(length)
        cached.append(rng.choice((length - 1, 0, 0, rng.randint(0, length - 1))))
    return cached, lengths, rng.randint(len(lengths), len(lengths) + longest + 2)


STEPS = [([7] * 300 + [0], [8] * 300 + [900], 1000), *draw(_draw_step)]

register("14.1", Comparison(STEPS, as_solved("14.1", STEP_MISTAKES), inputs("cached", "lengths", "budget")))


# 14.2

# The block count of a sequence that is gone is 0 where another than the last one goes.
ROOM_MISTAKES = {
    "preempted": {
        "the oldest goes on: the youngest gives way, or no sequence would ever be done": {
            "needed.pop()": "needed[len(preempted)] = 0",
            "append(len(needed))": "append(len(preempted))",
        },
        "a block that is begun is a block: round up": {"-(-n // block_size)": "n // block_size"},
        "the step writes the last token, too: it may need a block": {"-(-n // block_size)": "-((1 - n) // block_size)"},
        "one may not be enough": {"while": "if"},
    },
    "lost": {
        "the last token of a sequence was not computed yet, so it is not lost": {"lengths[i] - 1": "lengths[i]"},
        "a sequence that stays keeps its cached tokens": {
            "in preempted)": "in range(len(lengths) if preempted else 0))"
        },
    },
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
    return rng.choice((edge + 1, edge + 1, edge, rng.randint(1, 3 * size + 2)))


POOLS = [([65] * 300, 64, 300), *draw(_draw_pool, 80)]

register(
    "14.2",
    Comparison(POOLS, as_solved_by_name("14.2", ROOM_MISTAKES), inputs("lengths", "block_size", "num_blocks")),
)


# 14.4

register("14.4", require_careful)


# 14.5

register_piece("14.5")
