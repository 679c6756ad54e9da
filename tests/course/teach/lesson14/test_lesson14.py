"""Lesson 14, times, steps and blocks: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lesson14 import exercises
from stages import FusedStep


def gaps(finish):
    return [after - before for before, after in pairwise(finish)]


def times(arrival, first, finish, **instead):
    """Right, but for what `instead` computes."""
    right = {
        "waiting_time": lambda: first - arrival,
        "ttft": lambda: finish[0] - arrival,
        "tpot": lambda: (finish[-1] - finish[0]) / (len(finish) - 1) if finish[1:] else 0,
        "longest_itl": lambda: max(gaps(finish), default=0),
    }
    return tuple(instead[name](arrival, first, finish) if name in instead else value() for name, value in right.items())


def with_time(name, value):
    return lambda arrival, first, finish: times(arrival, first, finish, **{name: value})


test_wrong_times = wrong_answers(
    "14.3",
    {
        "a single token": (lambda a, s, f: (s - a, f[0] - a, (f[-1] - f[0]) / (len(f) - 1), max(gaps(f))), "Division"),
        "whole seconds": (with_time("ttft", lambda a, s, f: int(f[0] - a)), "ttft: you return 0"),
        "gaps in one digit": (
            with_time("longest_itl", lambda a, s, f: min(9, max(gaps(f), default=0))),
            "you return 9",
        ),
    },
)


def in_numpy(arrival, first, finish):
    each = np.diff(np.array(finish))
    return np.array([first - arrival, finish[0] - arrival, each.mean() if len(each) else 0, max(each, default=0)])


test_right_times = right_answers(
    "14.3",
    {
        "numpy": in_numpy,
        "from the end": lambda a, s, f: times(a, s, f, tpot=lambda a, s, f: sum(gaps(f)) / max(1, len(f) - 1)),
    },
)


# 14.1


step = solution("14.1")


test_wrong_steps = wrong_answers(
    "14.1",
    {
        "the caller's list used up": (
            lambda c, n, b: (step(c, n, b), n.clear())[0],
            "which is the caller's: make a copy",
        ),
        "nothing returned": (lambda c, n, b: None, "is a `return` missing?"),
        "a prompt of one token waits": (
            lambda c, n, b: step(c, [y + (not x and y == 1) for x, y in zip(c, n, strict=True)], b),
            "lengths=[1]",
        ),
        "chunks of 14": (lambda c, n, b: [min(14, i) for i in step(c, n, b)], "you return [14"),
    },
)


def by_sums(cached, lengths, budget):
    left = np.array(lengths) - np.array(cached)
    wanted = np.where(left > 1, left, 0)
    before = np.cumsum(wanted) - wanted
    return np.where(left == 1, 1, np.clip(budget - (left == 1).sum() - before, 0, wanted))


test_right_steps = right_answers(
    "14.1",
    {
        "with sums, an array": by_sums,
        "a tuple": lambda *case: tuple(step(*case)),
    },
)


# 14.2


def blocks(n, size):
    return -(-n // size)


room = solution("14.2")


test_wrong_rooms = wrong_answers(
    "14.2",
    {
        "the caller's lengths grown": (
            lambda *case: (room(*case), case[0].append(0))[0],
            "which is the caller's: make a copy",
        ),
        "two at most": (lambda *case: (room(*case)[0][:2], room(*case)[1]), "preempted: you return"),
    },
)


def from_the_front(lengths, size, num_blocks):
    """A sequence that still fits stays."""
    stays, free = 0, num_blocks
    for n in lengths:
        if blocks(n, size) > free:
            break
        free -= blocks(n, size)
        stays += 1
    return range(len(lengths) - 1, stays - 1, -1), sum(lengths[stays:]) - (len(lengths) - stays)


test_right_rooms = right_answers(
    "14.2",
    {
        "from the front, a range": from_the_front,
        "arrays": lambda *case: tuple(map(np.array, room(*case))),
    },
)


def test_what_is_cached_fits_into_the_pool():
    assert all(sum(blocks(n - 1, size) for n in lengths) <= most for lengths, size, most in exercises.POOLS)


# 14.5

piece_with = partial(solution, "14.5")
ENDED = "                self.free(seq)\n        self.running"
HELD = "        if self.holds(seq):\n            self.free(seq)\n"

test_wrong_schedulers = wrong_answers(
    "14.5",
    {
        "decodes are free": (
            piece_with({"self.max_num_batched_tokens - len(seqs)": "self.max_num_batched_tokens"}),
            "a step computed 4 tokens, max_num_batched_tokens=3",
        ),
        "another name": (piece_with({"def make_room(": "def make_rooms("}), "write make_room too"),
        "no scheduler": (FusedStep, "expected a subclass of TokenBudget, got a subclass of OneTable"),
        "blocks of an aborted one": (
            piece_with({f"{HELD}        seq.fin": "        seq.fin"}),
            "has ended (abort), and still holds blocks",
        ),
        "no limit of sequences": (piece_with({"len(self.tables) == self.max_num_seqs or ": ""}), "IndexError: index 4"),
        "a cut prompt gets a token": (piece_with({"seqs[:-1] if is_cut else seqs": "seqs"}), "**Any budget**"),
        "not freed": (
            piece_with({ENDED: ENDED.replace("self.free(seq)", "pass")}),
            "has ended (length), and still holds",
        ),
        "counted twice": (piece_with({"cached_tokens += n": "cached_tokens += 2 * n"}), "is broken"),
    },
)
# At night: the notebook's solution is judged in every run.
test_right_schedulers = pytest.mark.nightly(
    right_answers(
        "14.5",
        {
            "preempted goes last": piece_with({"self.waiting.appendleft(seq)": "self.waiting.append(seq)"}),
            "oldest first": piece_with({"self.preempt(self.running[-1])": "self.preempt(self.running[0])"}),
        },
    )
)
