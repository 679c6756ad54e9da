"""Lesson 14, times, steps and blocks: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers


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


@wrong_answers(
    "14.1",
    {
        "as the post has it": (with_time("waiting_time", lambda a, s, f: a - s), "it is never above 0"),
        "waits for its token": (
            with_time("waiting_time", lambda a, s, f: f[0] - a),
            "when its first step is scheduled",
        ),
        "waits for its prompt": (with_time("waiting_time", lambda a, s, f: f[0] - s), "how long its prompt took"),
        "TTFT without the queue": (with_time("ttft", lambda a, s, f: f[0] - s), "it counts from the arrival"),
        "TTFT to the end": (with_time("ttft", lambda a, s, f: f[-1] - a), "that is the last token, not the first"),
        "n gaps": (with_time("tpot", lambda a, s, f: (f[-1] - f[0]) / len(f)), "n tokens have n - 1 gaps"),
        "from the arrival": (with_time("tpot", lambda a, s, f: (f[-1] - a) / len(f)), "tpot: you return"),
        "the sum": (with_time("tpot", lambda a, s, f: f[-1] - f[0]), "the mean, not the sum"),
        "the median": (
            with_time("tpot", lambda a, s, f: sorted(gaps(f))[len(f[1:]) // 2] if f[1:] else 0),
            "not the one in the middle",
        ),
        "ITL with the first": (
            with_time("longest_itl", lambda a, s, f: max(gaps([a, *f]))),
            "the way to the first token is no gap",
        ),
        "the mean gap": (
            with_time("longest_itl", lambda a, s, f: sum(gaps(f)) / len(f[1:]) if f[1:] else 0),
            "the longest gap, not the mean",
        ),
        "the last gap": (with_time("longest_itl", lambda a, s, f: (gaps(f) or [0])[-1]), "the longest of all"),
        "a single token": (lambda a, s, f: (s - a, f[0] - a, (f[-1] - f[0]) / (len(f) - 1), max(gaps(f))), "Division"),
        "whole seconds": (with_time("ttft", lambda a, s, f: int(f[0] - a)), "ttft: you return 0"),
        "gaps in one digit": (
            with_time("longest_itl", lambda a, s, f: min(9, max(gaps(f), default=0))),
            "you return 9",
        ),
        "nothing returned": (lambda a, s, f: None, "expected (waiting_time, ttft, tpot, longest_itl), got None"),
    },
)
def test_wrong_times(answer, message):
    assert_refused("14.1", answer, message)


def in_numpy(arrival, first, finish):
    each = np.diff(np.array(finish))
    return np.array([first - arrival, finish[0] - arrival, each.mean() if len(each) else 0, max(each, default=0)])


@right_answers(
    "14.1",
    {
        "numpy": in_numpy,
        "tensors": lambda a, s, f: torch.tensor(times(a, s, f), dtype=torch.float64),
        "from the end": lambda a, s, f: times(a, s, f, tpot=lambda a, s, f: sum(gaps(f)) / max(1, len(f) - 1)),
    },
)
def test_right_times(answer):
    assert_accepted("14.1", answer)


# 14.2


def step(cached, lengths, budget, take=min, order=None, decode=lambda n: n == 1, stop=False):
    left = [length - n for n, length in zip(cached, lengths, strict=True)]
    num_new = [1 if decode(n) else 0 for n in left]
    room = budget - sum(num_new)
    for i in order(left) if order else range(len(left)):
        if not decode(left[i]):
            num_new[i] = take(left[i], room)
            room -= num_new[i]
            if stop and num_new[i] < left[i]:
                break
    return num_new


def in_order(cached, lengths, budget):
    return step(cached, lengths, budget, decode=lambda n: False)


def equal_shares(cached, lengths, budget):
    left = [length - n for n, length in zip(cached, lengths, strict=True)]
    share = (budget - left.count(1)) // max(1, len(left) - left.count(1))
    return [min(n, max(share, 1) if n == 1 else share) for n in left]


def one_prompt(cached, lengths, budget):
    left = [length - n for n, length in zip(cached, lengths, strict=True)]
    first = next((i for i, n in enumerate(left) if n > 1), None)
    return [n if left[i] == 1 or i == first else 0 for i, n in enumerate(step(cached, lengths, budget))]


@wrong_answers(
    "14.2",
    {
        "in order": (in_order, "who decodes goes first, wherever it stands"),
        "whole prompts": (
            lambda c, n, b: step(c, n, b, take=lambda need, room: need if need <= room else 0),
            "a prompt that does not fit is cut",
        ),
        "stops there": (
            lambda c, n, b: step(c, n, b, take=lambda need, room: need if need <= room else 0, stop=True),
            "a prompt that does not fit is cut",
        ),
        "decodes are free": (
            lambda c, n, b: step(c, n, b + sum(y - x == 1 for x, y in zip(c, n, strict=True))),
            "tokens that decode are of the budget, too",
        ),
        "the shortest first": (
            lambda c, n, b: step(c, n, b, order=lambda left: sorted(range(len(left)), key=left.__getitem__)),
            "in their order, not the shortest first",
        ),
        "the last first": (
            lambda c, n, b: step(c, n, b, order=lambda left: reversed(range(len(left)))),
            "expected [",
        ),
        "equal shares": (equal_shares, "equal shares cut every prompt"),
        "all that is left": (
            lambda c, n, b: step(c, n, b, take=lambda need, room: room),
            "each gets what it needs, not the whole budget",
        ),
        "all over again": (
            lambda c, n, b: step([x if y - x == 1 else 0 for x, y in zip(c, n, strict=True)], n, b),
            "cached tokens are not computed again",
        ),
        "one prompt a step": (one_prompt, "one prompt that fits leaves room for the next"),
        "no budget": (lambda c, n, b: [y - x for x, y in zip(c, n, strict=True)], "the budget bounds the step"),
        "nothing returned": (lambda c, n, b: None, "is a `return` missing?"),
        "a prompt of one token waits": (
            lambda c, n, b: step(c, [y + (not x and y == 1) for x, y in zip(c, n, strict=True)], b),
            "lengths=[1]",
        ),
        "chunks of 14": (lambda c, n, b: [min(14, i) for i in step(c, n, b)], "you return [14"),
    },
)
def test_wrong_steps(answer, message):
    assert_refused("14.2", answer, message)


def by_sums(cached, lengths, budget):
    left = np.array(lengths) - np.array(cached)
    wanted = np.where(left > 1, left, 0)
    before = np.cumsum(wanted) - wanted
    return np.where(left == 1, 1, np.clip(budget - (left == 1).sum() - before, 0, wanted))


def token_by_token(cached, lengths, budget):
    num_new = [0] * len(lengths)
    left = [length - n for n, length in zip(cached, lengths, strict=True)]
    queue = [i for i, n in enumerate(left) if n == 1] + [i for i, n in enumerate(left) if n > 1 for _ in range(n)]
    for i in queue[:budget]:
        num_new[i] += 1
    return tuple(num_new)


@right_answers(
    "14.2",
    {
        "with sums, an array": by_sums,
        "a queue of tokens, a tuple": token_by_token,
        "a tensor": lambda c, n, b: torch.tensor(step(c, n, b)),
    },
)
def test_right_steps(answer):
    assert_accepted("14.2", answer)


# 14.3


def blocks(n, size):
    return -(-n // size)


def victims(lengths, size, num_blocks, needs=blocks, pick=lambda left, lengths: left[-1], full=0):
    left, gone = list(range(len(lengths))), []
    while left and sum(needs(lengths[i], size) for i in left) > num_blocks - full:
        gone.append(pick(left, lengths))
        left.remove(gone[-1])
    return gone


def room(lengths, size, num_blocks, gone=victims, lost=lambda lengths, gone: sum(lengths[i] - 1 for i in gone)):
    gone_now = gone(lengths, size, num_blocks)
    return gone_now, lost(lengths, victims(lengths, size, num_blocks))


def by_victims(gone):
    return lambda *case: room(*case, gone=gone)


def by_loss(lost):
    return lambda *case: room(*case, lost=lost)


def gives_back_what_it_held(lengths, size, num_blocks):
    """Forgets that who goes needs no block for its next token either."""
    missing, gone = sum(blocks(n, size) for n in lengths) - num_blocks, []
    for i in reversed(range(len(lengths))):
        if missing > 0:
            gone.append(i)
            missing -= blocks(lengths[i] - 1, size)
    return gone


@wrong_answers(
    "14.3",
    {
        "the oldest goes": (
            by_victims(lambda *c: victims(*c, pick=lambda left, lengths: left[0])),
            "the youngest gives way, or nobody would ever be done",
        ),
        "the largest goes": (
            by_victims(lambda *c: victims(*c, pick=lambda left, n: max(left, key=n.__getitem__))),
            "not the one with the most blocks",
        ),
        "the smallest goes": (
            by_victims(lambda *c: victims(*c, pick=lambda left, n: min(reversed(left), key=n.__getitem__))),
            "not the one with the fewest blocks",
        ),
        "sorted": (by_victims(lambda *c: victims(*c)[::-1]), "the youngest first"),
        "rounded down": (by_victims(lambda *c: victims(*c, needs=lambda n, size: n // size)), "round up"),
        "what is cached": (
            by_victims(lambda *c: victims(*c, needs=lambda n, size: blocks(n - 1, size))),
            "the step writes the last token, too",
        ),
        "one block spare": (by_victims(lambda *c: victims(*c, full=1)), "a pool that is just full is large enough"),
        "one alone": (by_victims(lambda *c: victims(*c)[:1]), "one may not be enough"),
        "all but the oldest": (
            by_victims(lambda lengths, *c: list(range(len(lengths)))[:0:-1] if victims(lengths, *c) else []),
            "not more than it takes",
        ),
        "tokens, not blocks": (
            by_victims(lambda lengths, size, n: victims(lengths, 1, n * size)),
            "tokens are held in blocks",
        ),
        "the last token lost": (
            by_loss(lambda lengths, gone: sum(lengths[i] for i in gone)),
            "the last token of a sequence was not computed yet",
        ),
        "one sequence lost": (
            by_loss(lambda lengths, gone: sum(lengths[i] - 1 for i in gone[-1:])),
            "of everyone that goes",
        ),
        "those that stay": (
            by_loss(lambda lengths, gone: sum(n - 1 for i, n in enumerate(lengths) if i not in gone)),
            "of those that go, not of those that stay",
        ),
        "everybody's": (
            by_loss(lambda lengths, gone: sum(n - 1 for n in lengths) if gone else 0),
            "who stays keeps its own",
        ),
        "one value": (lambda *case: victims(*case), "expected (preempted, lost)"),
        "two at most": (by_victims(lambda *c: victims(*c)[:2]), "preempted: you return"),
        "what it held alone": (by_victims(lambda *c: gives_back_what_it_held(*c)), "preempted: you return [1, 0]"),
        "one block more": (by_victims(lambda *c: victims(*c, needs=lambda n, s: n // s + 1)), "preempted: you return"),
    },
)
def test_wrong_rooms(answer, message):
    assert_refused("14.3", answer, message)


def from_the_front(lengths, size, num_blocks):
    """Whoever still fits stays."""
    stays, free = 0, num_blocks
    for n in lengths:
        if blocks(n, size) > free:
            break
        free -= blocks(n, size)
        stays += 1
    return range(len(lengths) - 1, stays - 1, -1), sum(lengths[stays:]) - (len(lengths) - stays)


def one_by_one(lengths, size, num_blocks):
    """As the stage does it: each in turn reserves, and the last of those that run pays."""
    held = [blocks(n - 1, size) for n in lengths]
    left, gone, i = list(range(len(lengths))), [], 0
    while i < len(left):
        held[left[i]] = blocks(lengths[left[i]], size)
        while i < len(left) and sum(held[j] for j in left) > num_blocks:
            gone.append(left.pop())
        i += 1
    return gone, sum(lengths[i] - 1 for i in gone)


def with_sums(lengths, size, num_blocks):
    total = np.cumsum([blocks(n, size) for n in lengths])
    stays = int((total <= num_blocks).sum())
    return np.arange(len(lengths))[stays:][::-1].tolist(), np.array(lengths[stays:], dtype=int).sum() - (
        len(lengths) - stays
    )


def with_a_free_list(lengths, size, num_blocks):
    """Counts free blocks, which are never fewer than 0: what is cached fits into the pool."""
    held = [blocks(n - 1, size) for n in lengths]
    free, gone, i = num_blocks - sum(held), [], 0
    assert free >= 0, f"{-free} blocks too many are held before the step"
    while i < len(held):
        need = blocks(lengths[i], size) - held[i]
        while need > free and i < len(held):
            gone.append(len(held) - 1)
            free += held.pop()
        if i < len(held):
            free, held[i] = free - need, held[i] + need
        i += 1
    return tuple(gone), sum(lengths[i] - 1 for i in gone)


@right_answers(
    "14.3",
    {
        "with a free list": with_a_free_list,
        "from the front, a range": from_the_front,
        "one by one, as the stage": one_by_one,
        "with sums": with_sums,
    },
)
def test_right_rooms(answer):
    assert_accepted("14.3", answer)
