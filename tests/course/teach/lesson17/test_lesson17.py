"""Lesson 17, keys and aborts: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from wrong_answers import right_answers, wrong_answers


def in_fields(base):
    """One number with a digit for each part of the key."""
    return lambda at, p, n, out, made, r: ((p * base + at // r) * base + made - out) * base + at


test_wrong_keys = wrong_answers(
    "17.1",
    {
        "nothing": (lambda *request: None, "keys must be comparable"),
        "arrays": (lambda at, p, n, out, made, r: np.array([p, at // r, made - out, at]), "keys must be comparable"),
        "fields of 10**6": (in_fields(10**6), "expected"),
    },
)


test_right_keys = right_answers(
    "17.1",
    {
        "one number": lambda *request: Fraction(in_fields(10**30)(*request)),
        "pairs, divided": lambda at, p, n, out, made, r: ((p, (at - at % r) / r), (1 / (1 + out - made), float(at))),
    },
)


# 17.4


def named(scheduler, ids, *queues):
    return [seq for queue in queues or (scheduler.running, scheduler.waiting) for seq in queue if seq.seq_id in ids]


def all_of_them(scheduler):
    return [*scheduler.running, *scheduler.waiting]


def aborting(chosen):
    """chosen(scheduler, ids): sequences that it calls abort for, in this order."""

    def answer(scheduler, ids):
        for seq in chosen(scheduler, ids):
            scheduler.abort(seq)

    return answer


def without_its_blocks(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        seq.finish_reason = "abort"
        scheduler.running.remove(seq)
    for seq in named(scheduler, ids, scheduler.waiting):
        scheduler.abort(seq)


def others_preempted(scheduler, ids):
    for seq in list(scheduler.running):
        (scheduler.abort if seq.seq_id in ids else scheduler.preempt)(seq)
    aborting(named)(scheduler, ids)


def with_a_token_for_the_others(scheduler, ids):
    aborting(named)(scheduler, ids)
    for seq in scheduler.running:
        seq.append(0)


def added_again(scheduler, ids):
    for seq in named(scheduler, ids):
        scheduler.abort(seq)
        scheduler.add(seq)


test_wrong_aborts = wrong_answers(
    "17.4",
    {
        "the others preempted": (others_preempted, "running afterwards: [], expected [1]"),
        "a token for the others": (with_a_token_for_the_others, "tokens afterwards: ["),
        "added again": (added_again, "waiting afterwards: ["),
        "blocks forgotten": (without_its_blocks, "blocks afterwards: ["),
        "the set emptied": (
            lambda s, ids: (aborting(named)(s, ids), ids.clear()),
            "request_ids afterwards: [], expected [",
        ),
        "an id that has ended": (
            aborting(lambda s, ids: [{seq.seq_id: seq for seq in all_of_them(s)}[one] for one in ids]),
            "KeyError",
        ),
    },
)


def id_by_id(scheduler, ids):
    for wanted in ids:
        for seq in [*scheduler.waiting, *scheduler.running]:
            if seq.seq_id == wanted:
                scheduler.abort(seq)
                break


test_right_aborts = right_answers(
    "17.4",
    {
        "backwards": aborting(lambda s, ids: named(s, ids)[::-1]),
        "id by id": id_by_id,
    },
)
