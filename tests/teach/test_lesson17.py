"""Lesson 17, keys and aborts: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from fractions import Fraction

from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers


@wrong_answers(
    "17.1",
    {
        "no rounds": (lambda at, p, n, out, made, r: (p, made - out, at), "no rounds"),
        "round first": (lambda at, p, n, out, made, r: (at // r, p, made - out, at), "priority goes before rounds"),
        "highest first": (
            lambda at, p, n, out, made, r: (-p, at // r, made - out, at),
            "the lower priority goes first",
        ),
        "no priority": (lambda at, p, n, out, made, r: (at // r, made - out, at), "before everything else"),
        "shortest": (lambda at, p, n, out, made, r: (p, at // r, out - made, at), "the smallest key goes first"),
        "all of it": (lambda at, p, n, out, made, r: (p, at // r, -out, at), "tokens that are made"),
        "with the prompt": (lambda at, p, n, out, made, r: (p, at // r, made - out - n, at), "a prompt is no output"),
        "last of equals": (
            lambda at, p, n, out, made, r: (p, at // r, made - out, -at),
            "of equals, the one that came",
        ),
        "no arrival": (lambda at, p, n, out, made, r: (p, at // r, made - out), "the queue is in no order before"),
        "remainder": (lambda at, p, n, out, made, r: (p, at % r, made - out, at), "arrivals one after another"),
        "from 1": (lambda at, p, n, out, made, r: (p, (at + 1) // r, made - out, at), "arrivals count from 0"),
        "round last": (lambda at, p, n, out, made, r: (p, made - out, at // r, at), "no rounds"),
        "first come": (lambda at, p, n, out, made, r: (p, at), "not the first that came"),
        "nothing": (lambda *request: None, "keys must be comparable"),
        "fields of 10**4": (
            lambda at, p, n, out, made, r: ((p * 10**4 + at // r) * 10**4 + made - out) * 10**4 + at,
            "expected",
        ),
        "fields of 10**6": (
            lambda at, p, n, out, made, r: ((p * 10**6 + at // r) * 10**6 + made - out) * 10**6 + at,
            "expected",
        ),
        "fields as floats": (
            lambda at, p, n, out, made, r: p * 1e9 + at // r * 1e6 + (made - out) * 1e3 + at,
            "expected",
        ),
        "the last two in one": (lambda at, p, n, out, made, r: (p, at // r, (made - out) * 1000 + at), "expected"),
        "the sign of the priority": (
            lambda at, p, n, out, made, r: ((p > 0) - (p < 0), at // r, made - out, at),
            "expected",
        ),
        "shorter prompts of equals": (lambda at, p, n, out, made, r: (p, at // r, made - out, n, at), "expected"),
        "digits, filled up": (
            lambda at, p, n, out, made, r: f"{p + 10:05}{at // r:05}{9999 + made - out:05}{at:05}",
            "expected",
        ),
        "a text": (lambda at, p, n, out, made, r: str((p, at // r, made - out, at)), "expected"),
    },
)
def test_wrong_keys(answer, message):
    assert_refused("17.1", answer, message)


class Order:
    def __init__(self, *numbers):
        self.numbers = numbers

    def __lt__(self, other):
        return self.numbers < other.numbers


@right_answers(
    "17.1",
    {
        "an object": lambda at, p, n, out, made, r: Order(p, at // r, made - out, at),
        "nested": lambda at, p, n, out, made, r: ((p, at // r), [made - out, (at, n)]),
        "a list": lambda at, p, n, out, made, r: [p, at // r, made - out, at],
        "one number": lambda at, p, n, out, made, r: Fraction(
            ((p * 10**30 + at // r) * 10**30 + made - out) * 10**30 + at
        ),
        "pairs, divided": lambda at, p, n, out, made, r: ((p, (at - at % r) / r), (1 / (1 + out - made), float(at))),
    },
)
def test_right_keys(answer):
    assert_accepted("17.1", answer)


# 17.2


def named(scheduler, ids, *queues):
    return [seq for queue in queues or (scheduler.running, scheduler.waiting) for seq in queue if seq.seq_id in ids]


def one_call(scheduler, ids):
    for seq in [*scheduler.running, *scheduler.waiting]:
        if seq.seq_id == ids:
            scheduler.abort(seq)


def while_walking(scheduler, ids):
    for seq in scheduler.running:
        if seq.seq_id in ids:
            scheduler.abort(seq)
    for seq in scheduler.waiting:
        if seq.seq_id in ids:
            scheduler.abort(seq)


def runs_only(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        scheduler.abort(seq)


def the_first(scheduler, ids):
    for seq in named(scheduler, ids)[:1]:
        scheduler.abort(seq)


def status_only(scheduler, ids):
    for seq in named(scheduler, ids):
        seq.finish_reason = "abort"


def without_its_blocks(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        seq.finish_reason = "abort"
        scheduler.running.remove(seq)
    for seq in named(scheduler, ids, scheduler.waiting):
        scheduler.abort(seq)


def blocks_alone(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        scheduler.blocks.free(seq.seq_id)


def by_hand(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        scheduler.running.remove(seq)
        scheduler.blocks.free(seq.seq_id)
    for seq in named(scheduler, ids, scheduler.waiting):
        scheduler.abort(seq)


def everybody(scheduler, ids):
    for seq in [*scheduler.running, *scheduler.waiting]:
        scheduler.abort(seq)


def all_others(scheduler, ids):
    runs_only(scheduler, ids)
    for seq in scheduler.waiting:
        scheduler.abort(seq)


def twice(scheduler, ids):
    for seq in named(scheduler, ids) * 2:
        scheduler.abort(seq)


def by_id(scheduler, ids):
    by_id = {seq.seq_id: seq for seq in [*scheduler.running, *scheduler.waiting]}
    for request_id in ids:
        scheduler.abort(by_id[request_id])


def preempted(scheduler, ids):
    for seq in named(scheduler, ids, scheduler.running):
        scheduler.preempt(seq)


def waits_only(scheduler, ids):
    for seq in scheduler.waiting:
        if seq.seq_id in ids:
            scheduler.abort(seq)


def others_preempted(scheduler, ids):
    for seq in list(scheduler.running):
        (scheduler.abort if seq.seq_id in ids else scheduler.preempt)(seq)
    waits_only(scheduler, ids)


def turned_round(scheduler, ids):
    runs_only(scheduler, ids)
    waits_only(scheduler, ids)
    scheduler.running.reverse()


def five_at_most(scheduler, ids):
    for seq in named(scheduler, sorted(ids)[:5]):
        scheduler.abort(seq)


def added_again(scheduler, ids):
    for seq in named(scheduler, ids):
        scheduler.abort(seq)
        scheduler.add(seq)


@wrong_answers(
    "17.2",
    {
        "one call with the set": (one_call, "an id never equals a set"),
        "while walking": (while_walking, "does the loop walk over the list from which abort removes them"),
        "those that run": (runs_only, "still waits, and will be begun later"),
        "the first": (the_first, "or end too early?"),
        "a status": (status_only, "finish_reason says that they have ended"),
        "those that wait": (waits_only, "abort was called for no request"),
        "the others preempted": (others_preempted, "were not named; now [] run"),
        "the others turned round": (turned_round, "the others must not be touched"),
        "five": (five_at_most, "request 5 still waits"),
        "added again": (added_again, "still waits, and will be begun later"),
        "blocks forgotten": (without_its_blocks, "blocks have not"),
        "blocks alone": (blocks_alone, "still run"),
        "by hand": (by_hand, "abort changes all that belongs to them"),
        "everybody": (everybody, "was not named, and is gone"),
        "all that wait": (all_others, "was not named, and is gone"),
        "twice": (twice, "neither waits nor runs here"),
        "an id that has ended": (by_id, "KeyError"),
        "preempted": (preempted, "still waits"),
    },
)
def test_wrong_aborts(answer, message):
    assert_refused("17.2", answer, message)


def backwards(scheduler, ids):
    for place in range(len(scheduler.running) - 1, -1, -1):
        if scheduler.running[place].seq_id in ids:
            scheduler.abort(scheduler.running[place])
    for seq in scheduler.waiting:
        if seq.seq_id in ids:
            scheduler.abort(seq)


def one_after_the_other(scheduler, ids):
    while found := named(scheduler, ids):
        scheduler.abort(found[-1])


def id_by_id(scheduler, ids):
    while ids:
        wanted = ids.pop()
        for seq in [*scheduler.waiting, *scheduler.running]:
            if seq.seq_id == wanted:
                scheduler.abort(seq)
                break


@right_answers("17.2", {"backwards": backwards, "until none is left": one_after_the_other, "id by id": id_by_id})
def test_right_aborts(answer):
    assert_accepted("17.2", answer)
