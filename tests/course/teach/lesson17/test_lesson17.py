"""Lesson 17: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
from wrong_answers import right_answers, wrong_answers

from roseinfer.engine.policies import Policy


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


# 17.2


def may_go(overtaken, bound):
    stop = next((i for i, n in enumerate(overtaken) if n >= bound), len(overtaken) - 1)
    return range(stop + 1)


def shortest(lens, places):
    return min(places, key=lambda i: lens[i])


test_wrong_bounds = wrong_answers(
    "17.2",
    {
        "nothing": (lambda lens, o, b: None, "got None"),
        "the caller's list cut": (
            lambda lens, o, b: (shortest(lens, may_go(o, b)), o.clear())[0],
            "which is the caller's: make a copy",
        ),
        "six at most": (lambda lens, o, b: shortest(lens[:6], may_go(o[:6], b)), "you return"),
        "bounds below 4": (lambda lens, o, b: shortest(lens, may_go(o, min(b, 3))), "you return"),
        "all of them": (lambda lens, o, b: sorted(may_go(o, b), key=lambda i: lens[i]), "expected"),
    },
)


def recursive(lens, overtaken, bound):
    if len(lens) == 1 or overtaken[0] >= bound:
        return 0
    later = 1 + recursive(lens[1:], overtaken[1:], bound)
    return later if lens[later] < lens[0] else 0


def in_numpy(lens, overtaken, bound):
    reached = np.array(overtaken) >= bound
    closed = np.concatenate([[0], np.cumsum(reached)[:-1]]) > 0
    return np.where(closed, 10**9, np.array(lens)).argmin()


test_right_bounds = right_answers("17.2", {"recursive": recursive, "numpy": in_numpy})


# 17.3


class Known(Policy):
    def check(self, params):
        if not params.ignore_eos or params.stop_token_ids or params.stop:
            raise ValueError("lengths must be known")


def keyed(by, base=Known, **methods):
    return type("MyPolicy", (base,), {"name": "mine", "key": lambda self, seq: by(seq), **methods})


def left(seq):
    return seq.max_len - len(seq)


def only_the_end_token(self, params):
    if not params.ignore_eos:
        raise ValueError("lengths must be known")


def of_all_rounds(self, waiting, room):
    return min(range(len(waiting)), key=lambda i: left(waiting[i][-1]))


def sorting(self, waiting, room):
    waiting.sort(key=lambda place: (*place[:2], left(place[-1])))
    return 0


def shortest_left(self, waiting, room):
    places = [i for i, place in enumerate(waiting) if place[:2] == waiting[0][:2]]
    return min(places, key=lambda i: left(waiting[i][-1]))


def new_ones_only(of_new, of_others):
    return lambda seq: of_new(seq) if len(seq) == seq.num_prompt_tokens else of_others


def greedy_only(self, params):
    Known.check(self, params)
    if params.temperature:
        raise ValueError("greedy requests only")


def refusing(is_refused):
    def check(self, params):
        Known.check(self, params)
        if is_refused(params):
            raise ValueError("not such a request")

    return check


test_wrong_policies = wrong_answers(
    "17.3",
    {
        "first come": (keyed(lambda seq: 0), "key is the same for short and long outputs"),
        "lengths in pick": (
            keyed(lambda seq: 0, base=Policy, pick=shortest_left),
            "pick reads how long an output gets",
        ),
        "pick over all rounds": (
            keyed(lambda seq: 0, pick=of_all_rounds),
            "others wait in a later round or priority",
        ),
        "a queue that it sorts": (keyed(lambda seq: 0, pick=sorting), "pick changes the queue that it is given"),
        "pick from the end": (keyed(left, pick=lambda self, waiting, room: -1), "pick returns -1, expected one of"),
        "the last for some rooms": (
            keyed(left, pick=lambda self, waiting, room: len(waiting) - 1 if 10 < room < 900 else 0),
            "others wait in a later round or priority",
        ),
        "no key for preempted ones": (keyed(new_ones_only(left, None)), "a preempted sequence is queued again"),
        "greedy requests alone": (keyed(left, check=greedy_only), "temperature=0.7"),
        "4000 tokens at most": (keyed(left, check=refusing(lambda p: p.max_tokens > 4000)), "max_tokens=100000"),
        "no check": (keyed(left, base=Policy), "lets SamplingParams() pass"),
        "half a check": (keyed(left, base=Policy, check=only_the_end_token), "stop_token_ids=(3,)"),
        "tokens are taken": (keyed(lambda seq: seq.token_ids.pop()), "key(seq) changes the sequence"),
        "text": (keyed(lambda seq: f"{left(seq):04}"), "expected a number or a tuple of numbers"),
        "drawn": (keyed(lambda seq: random.random()), "for the same sequence later"),
        "keys of two kinds": (keyed(lambda seq: left(seq) if left(seq) > 6 else (1, 2)), "comparable with each other"),
        "nothing written": (type("Mine", (Policy,), {}), "NotImplementedError"),
    },
)


class Scans(Known):
    """No key at all: it looks through the round whenever a request can join."""

    name = "scans"

    def key(self, seq):
        return 0

    def pick(self, waiting, room):
        first = waiting[0][:2]
        return min((i for i, place in enumerate(waiting) if place[:2] == first), key=lambda i: left(waiting[i][-1]))


test_right_policies = right_answers(
    "17.3",
    {
        "classes of about the same length": keyed(lambda seq: (int(math.log2(left(seq))), seq.num_prompt_tokens)),
        "no key, a scan": Scans,
    },
)
