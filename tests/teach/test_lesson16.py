"""Lesson 16, plans, places and surplus tokens: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import assert_accepted, assert_refused, right_answers, wrong_answers


def right(n, cached, flying, most):
    length = n + (flying > 0 and cached + flying == n)
    return 0 if length == most else length - cached - flying


def each(rule):
    return lambda requests: [int(rule(*request)) for request in requests]


@wrong_answers(
    "16.1",
    {
        "the token to come is forgotten": (each(lambda n, c, f, m: n - c - f), "and so it has one token more"),
        "computed twice": (
            each(lambda n, c, f, m: right(n, c, f, m) + f if right(n, c, f, m) else 0),
            "what is in flight is computed already",
        ),
        "the end is not foreseen": (
            each(lambda n, c, f, m: n + (f > 0 and c + f == n) - c - f),
            "max_len is foreseen",
        ),
        "ends one too early": (
            each(lambda n, c, f, m: 0 if n + 1 >= m - 1 else right(n, c, f, m)),
            "does not have max_len yet, and goes on",
        ),
        "a chunk with a token": (
            each(lambda n, c, f, m: 0 if n + (f > 0) == m else n + (f > 0) - c - f),
            "a chunk gets no token",
        ),
        "never twice in a row": (
            each(lambda n, c, f, m: 0 if f else right(n, c, f, m)),
            "who is in flight can be in the next step as well",
        ),
        "only who is in flight": (
            each(lambda n, c, f, m: right(n, c, f, m) if f else 0),
            "who is not in flight has its tokens still to be computed",
        ),
        "one token each": (each(lambda n, c, f, m: min(1, right(n, c, f, m))), "all that is left can be computed"),
        "a token from nowhere": (
            each(lambda n, c, f, m: 0 if n + 1 == m and not f else right(n, c, f, m) + (not f)),
            "who is not in flight gets no token from it",
        ),
        "one number": (lambda requests: sum(right(*r) for r in requests), "expected"),
        "printed": (lambda requests: print(each(right)(requests)), "got None"),
        "six at most": (each(lambda *request: min(6, right(*request))), "you return"),
        "a token for decodes alone": (
            each(lambda n, c, f, m: (lambda length: 0 if length == m else length - c - f)(n + (f == 1 and c + f == n))),
            "in_flight=3",
        ),
    },
)
def test_wrong_plans(answer, message):
    assert_refused("16.1", answer, message)


def in_columns(requests):
    n, cached, flying, most = np.array(requests).T
    length = n + ((flying > 0) & (cached + flying == n))
    return np.where(length == most, 0, length - cached - flying)


class Planned:
    def __init__(self, n, cached, flying, most):
        self.left = n - cached - flying
        self.length, self.most = n, most
        if self.left == 0:
            self.length += 1

    def num_new(self):
        return max(1, self.left) if self.length < self.most else 0


@right_answers(
    "16.1",
    {
        "numpy": in_columns,
        "objects": lambda requests: [Planned(*request).num_new() for request in requests],
        "a tuple": lambda requests: tuple(each(right)(requests)),
    },
)
def test_right_plans(answer):
    assert_accepted("16.1", answer)


# 16.2


def writing(values):
    def feed(token_ids, last_tokens):
        token_ids.copy_(values(token_ids, last_tokens))

    return feed


def rows_of(ids):
    return (-1 - ids).clamp(min=0)


def by_mask(ids, last):
    unknown = ids < 0
    ids[unknown] = last[-1 - ids[unknown]].clamp(min=0).int()


def in_a_loop(ids, last):
    for i in range(len(ids)):
        if ids[i] < 0:
            ids[i] = last[-1 - ids[i]].clamp(min=0)


def fresh(ids, last):
    return last[rows_of(ids)].clamp(min=0)


def in_other_memory(ids, last):
    ids.set_(torch.where(ids < 0, fresh(ids, last), ids).int())


def with_other_data(ids, last):
    ids.data = torch.where(ids < 0, fresh(ids, last), ids).int()


def rows_kept():
    """The tokens are those of the call before, where token_ids are the same tensor."""
    kept = {}

    def feed(ids, last):
        if kept.get("ids") is not ids:
            kept.update(ids=ids, tokens=torch.where(ids < 0, fresh(ids, last), ids).int())
        ids.copy_(kept["tokens"])

    return feed


def in_numpy(ids, last):
    ids, last = ids.numpy(), last.numpy()
    ids[ids < 0] = np.maximum(last[-1 - ids[ids < 0]], 0)


def clamping_last(ids, last):
    last.clamp_(min=0)
    ids.copy_(torch.where(ids < 0, last[rows_of(ids)], ids))


@wrong_answers(
    "16.2",
    {
        "one row further": (
            writing(lambda ids, last: torch.where(ids < 0, last[(-ids).clamp(0, len(last) - 1)].clamp(min=0), ids)),
            "-1 is row 0, and -2 is row 1",
        ),
        "from the end": (
            writing(lambda ids, last: torch.where(ids < 0, last[ids.clamp(max=-1)].clamp(min=0), ids)),
            "a negative index counts from the end",
        ),
        "the same row as before": (
            writing(
                lambda ids, last: torch.where(
                    ids < 0, last[torch.arange(len(ids)).clamp(max=len(last) - 1)].clamp(min=0), ids
                )
            ),
            "sequences may have changed their places since",
        ),
        "known tokens too": (
            writing(lambda ids, last: last[rows_of(ids)].clamp(min=0)),
            "known tokens stay as they are",
        ),
        "token 0 too": (
            writing(lambda ids, last: torch.where(ids <= 0, last[rows_of(ids)].clamp(min=0), ids)),
            "only negative ids are places",
        ),
        "NaN's -1 stays": (
            writing(lambda ids, last: torch.where(ids < 0, last[rows_of(ids)], ids)),
            "a -1 of a row with NaN is no token",
        ),
        "returned": (
            lambda ids, last: torch.where(ids < 0, last[rows_of(ids)].clamp(min=0), ids),
            "returned, but not in token_ids",
        ),
        "by a mask": (by_mask, "the host waits"),
        "in a loop": (in_a_loop, "the host waits"),
        "clamped at the source": (clamping_last, "it is only read"),
        "nothing": (lambda ids, last: [], "token_ids afterwards"),
        "16 bits": (writing(lambda ids, last: torch.where(ids < 0, fresh(ids, last).short(), ids)), "4 of 4 values"),
        "fp16": (writing(lambda ids, last: torch.where(ids < 0, fresh(ids, last).half(), ids.half())), "got 34976"),
        "ids below 256": (
            writing(lambda ids, last: torch.where(ids < 0, fresh(ids, last).clamp(max=255), ids)),
            "first at (0,): got 255",
        ),
        "other memory": (in_other_memory, "token_ids lies in other memory now"),
        "other data": (with_other_data, "token_ids lies in other memory now"),
        "the rows of the first call": (rows_kept(), "captured, and replayed with"),
        "through NumPy": (in_numpy, "the host waits"),
    },
)
def test_wrong_feeds(answer, message):
    assert_refused("16.2", answer, message)


def by_arithmetic(ids, last):
    unknown = (ids < 0).int()
    tokens = last[rows_of(ids)].clamp(min=0).int()
    ids.mul_(1 - unknown).add_(tokens * unknown)


def with_a_row_in_front(ids, last):
    known = ids.clamp(min=0).long()
    table = torch.cat([torch.zeros_like(last[:1]), last.clamp(min=0)])  # row 0: for known ones
    ids.copy_(known + table[(-ids).clamp(min=0)])


def row_by_row(ids, last):
    for row in range(len(last)):
        ids.copy_(torch.where(ids == -1 - row, last[row].clamp(min=0), ids))


def gathered(ids, last):
    torch.where(ids >= 0, ids, last.clamp(min=0).gather(0, rows_of(ids).long()).int(), out=ids)


@right_answers(
    "16.2",
    {
        "arithmetic": by_arithmetic,
        "a row in front": with_a_row_in_front,
        "gather, with out=": gathered,
        "row by row": row_by_row,
    },
)
def test_right_feeds(answer):
    assert_accepted("16.2", answer)


# 16.3


def reason_of(seq, token, stop):
    return "stop" if token == stop else "length" if len(seq.token_ids) == seq.max_len else None


def checked(seqs, tokens):
    if any(token == -1 for seq, token in zip(seqs, tokens, strict=True) if not seq.finish_reason):
        raise ValueError("no token")


def committing(one):
    """one(seq, token, stop) -> whether it is returned. With the check for -1 before."""

    def commit(seqs, tokens, stop):
        checked(seqs, tokens)
        return [seq for seq, token in zip(seqs, tokens, strict=True) if one(seq, token, stop)]

    return commit


def append(seq, token, stop):
    if seq.finish_reason:
        return False
    seq.token_ids.append(token)
    seq.finish_reason = reason_of(seq, token, stop)
    return True


def surplus_too(seq, token, stop):
    seq.token_ids.append(token)
    seq.finish_reason = seq.finish_reason or reason_of(seq, token, stop)
    return True


def judged_anew(seq, token, stop):
    seq.token_ids.append(token)
    seq.finish_reason = reason_of(seq, token, stop)
    return True


def all_returned(seq, token, stop):
    append(seq, token, stop)
    return True


def only_who_goes_on(seq, token, stop):
    return append(seq, token, stop) and not seq.finish_reason


def stop_left_out(seq, token, stop):
    if not seq.finish_reason and token == stop:
        seq.finish_reason = "stop"
        return True
    return append(seq, token, stop)


def length_first(seq, token, stop):
    if not append(seq, token, stop):
        return False
    if len(seq.token_ids) == seq.max_len:
        seq.finish_reason = "length"
    return True


def judged_before(seq, token, stop):
    if seq.finish_reason:
        return False
    seq.finish_reason = reason_of(seq, token, stop)
    seq.token_ids.append(token)
    return True


def shifted(seqs, tokens, stop):
    checked(seqs, tokens)
    alive = [seq for seq in seqs if not seq.finish_reason]
    for seq, token in zip(alive, tokens, strict=False):
        append(seq, token, stop)
    return alive


def all_or_none(seqs, tokens, stop):
    checked(seqs, tokens)
    return [] if any(seq.finish_reason for seq in seqs) else committing(append)(seqs, tokens, stop)


def any_nan_refused(seqs, tokens, stop):
    if -1 in tokens:
        raise ValueError("no token")
    return committing(append)(seqs, tokens, stop)


def refused_in_between(seqs, tokens, stop):
    for seq, token in zip(seqs, tokens, strict=True):
        if token == -1 and not seq.finish_reason:
            raise ValueError("no token")
        append(seq, token, stop)
    return [seq for seq, reason in zip(seqs, [True] * len(seqs), strict=True) if reason]


def refused_late(seqs, tokens, stop):
    done = []
    for seq, token in zip(seqs, tokens, strict=True):
        if token == -1 and not seq.finish_reason:
            raise ValueError("no token")
        if append(seq, token, stop):
            done.append(seq)
    return done


def refusing(rows):
    """Looks for -1 in these of the rows that have not ended."""

    def commit(seqs, tokens, stop):
        running = [(seq, token) for seq, token in zip(seqs, tokens, strict=True) if not seq.finish_reason]
        if any(token == -1 for _, token in rows(running)):
            raise ValueError("no token")
        for seq, token in running:
            append(seq, token, stop)
        return [seq for seq, _ in running]

    return commit


def append_if_same(seq, token, stop):
    if seq.finish_reason:
        return False
    seq.token_ids.append(token)
    seq.finish_reason = "stop" if token is stop else reason_of(seq, token, None)
    return True


def goes_on_after_length(seqs, tokens, stop):
    checked(
        [seq for seq in seqs if not seq.finish_reason],
        [t for s, t in zip(seqs, tokens, strict=True) if not s.finish_reason],
    )
    done = []
    for seq, token in zip(seqs, tokens, strict=True):
        if seq.finish_reason in (None, "length"):
            seq.token_ids.append(token)
            seq.finish_reason = reason_of(seq, token, stop)
            done.append(seq)
    return done


def ends_before(seqs, tokens, stop):
    for seq, token in zip(seqs, tokens, strict=True):
        if not seq.finish_reason and token == stop:
            seq.finish_reason, seq.ends_now = "stop", True
    ending = [seq for seq in seqs if vars(seq).pop("ends_now", False)]
    checked(seqs, tokens)
    for seq in ending:
        seq.finish_reason = None
    return committing(append)(seqs, tokens, stop)


def with_another_error(seqs, tokens, stop):
    try:
        return committing(append)(seqs, tokens, stop)
    except ValueError as error:
        raise IndexError("no token") from error


def rolled_back(seqs, tokens, stop):
    before, done = [(list(seq.token_ids), seq.finish_reason) for seq in seqs], []
    for seq, token in zip(seqs, tokens, strict=True):
        if token == -1 and not seq.finish_reason:
            for one, (token_ids, reason) in zip(seqs, before, strict=True):
                one.token_ids[:], one.finish_reason = token_ids, reason
            raise UnicodeError("a ValueError, too")
        if append(seq, token, stop):
            done.append(seq)
    return done


@wrong_answers(
    "16.3",
    {
        "the surplus too": (committing(surplus_too), "whoever has ended gets no token: it is a surplus"),
        "judged anew": (committing(judged_anew), "whoever has ended keeps its reason"),
        "all returned": (committing(all_returned), "only those that have one token more are returned"),
        "only who goes on": (committing(only_who_goes_on), "whoever ends with its token has one more, too"),
        "the stop token left out": (committing(stop_left_out), "the token that ends a request stays in it"),
        "length first": (committing(length_first), '"stop" goes before "length"'),
        "judged before": (committing(judged_before), "max_len counts the new token"),
        "tokens moved up": (shifted, "tokens belong to rows"),
        "nobody at all": (all_or_none, "the tokens of the others are none the worse"),
        "any -1 refused": (any_nan_refused, "whose token is a surplus"),
        "refused late": (refused_late, "something was appended before it"),
        "not refused": (
            lambda seqs, tokens, stop: [s for s, t in zip(seqs, tokens, strict=True) if append(s, t, stop)],
            "nothing was raised",
        ),
        "-1 in the first row alone": (refusing(lambda rows: rows[:1]), "the -1 of row"),
        "-1 in the last row alone": (refusing(lambda rows: rows[-1:]), "the -1 of row 0"),
        "-1 behind the first row": (refusing(lambda rows: rows[1:]), "the -1 of row 0"),
        "-1 where nothing is surplus": (
            lambda seqs, tokens, stop: refusing(lambda rows: rows if len(rows) == len(seqs) else [])(
                seqs, tokens, stop
            ),
            "nothing was raised",
        ),
        "0 is the stop token": (lambda seqs, tokens, stop: committing(append)(seqs, tokens, 0), "stop_token_id=7"),
        "the same object": (committing(append_if_same), "stop_token_id=50256"),
        "ended by its length, and goes on": (goes_on_after_length, "finish_reason='length'"),
        "ends before it refuses": (ends_before, "or a sequence ended"),
        "an IndexError": (with_another_error, "IndexError"),
        "a count": (lambda *given: len(committing(append)(*given)), "expected a list of the sequences"),
    },
)
def test_wrong_commits(answer, message):
    assert_refused("16.3", answer, message)


def from_behind(seqs, tokens, stop):
    checked(seqs, tokens)
    done = [seq for seq, token in reversed(list(zip(seqs, tokens, strict=True))) if append(seq, token, stop)]
    return done[::-1]


def with_new_lists(seqs, tokens, stop):
    done = {row: seq for row, seq in enumerate(seqs) if seq.finish_reason is None}
    if any(tokens[row] < 0 for row in done):
        raise ValueError("no token")
    for row, seq in done.items():
        seq.token_ids = [*seq.token_ids, tokens[row]]
        seq.finish_reason = {True: "length", False: None}[len(seq.token_ids) >= seq.max_len]
        if tokens[row] == stop:
            seq.finish_reason = "stop"
    return tuple(done.values())


@right_answers(
    "16.3",
    {
        "from behind": from_behind,
        "taken back after a -1": rolled_back,
        "new lists, a tuple": with_new_lists,
        "a generator": lambda *given: (seq for seq in committing(append)(*given)),
    },
)
def test_right_commits(answer):
    assert_accepted("16.3", answer)
