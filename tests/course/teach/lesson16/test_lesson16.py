"""Lesson 16: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers


def right(n, cached, flying, most):
    length = n + (flying > 0 and cached + flying == n)
    return 0 if length == most else length - cached - flying


def each(rule):
    return lambda requests: [int(rule(*request)) for request in requests]


test_wrong_plans = wrong_answers(
    "16.1",
    {
        "six at most": (each(lambda *request: min(6, right(*request))), "you return"),
        "a token for decodes alone": (
            each(lambda n, c, f, m: (lambda length: 0 if length == m else length - c - f)(n + (f == 1 and c + f == n))),
            "in_flight=2",
        ),
    },
)


def in_columns(requests):
    n, cached, flying, most = np.array(requests).T
    length = n + ((flying > 0) & (cached + flying == n))
    return np.where(length == most, 0, length - cached - flying)


test_right_plans = right_answers(
    "16.1",
    {
        "numpy": in_columns,
        "a tuple": lambda requests: tuple(each(right)(requests)),
    },
)


# 16.2


def writing(values):
    def feed(token_ids, last_tokens):
        token_ids.copy_(values(token_ids, last_tokens))

    return feed


def looking_up(tokens):
    """Right, but for the tokens that it takes for those which are unknown."""
    return writing(lambda ids, last: torch.where(ids < 0, tokens(ids, last), ids))


def rows_of(ids):
    return (-1 - ids).clamp(min=0)


def by_mask(ids, last):
    unknown = ids < 0
    ids[unknown] = last[-1 - ids[unknown]].clamp(min=0).int()


def fresh(ids, last):
    return last[rows_of(ids)].clamp(min=0)


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


def clamping_last(ids, last):
    last.clamp_(min=0)
    ids.copy_(torch.where(ids < 0, last[rows_of(ids)], ids))


test_wrong_feeds = wrong_answers(
    "16.2",
    {
        "by a mask": (by_mask, "the host waits"),
        "clamped at the source": (clamping_last, "it is only read"),
        "16 bits": (looking_up(lambda ids, last: fresh(ids, last).short()), "values differ"),
        "other data": (with_other_data, "2 of 2 values differ"),
        "the rows of the first call": (rows_kept(), "captured, and then replayed with"),
    },
)


def with_a_row_before(ids, last):
    known = ids.clamp(min=0).long()
    table = torch.cat([torch.zeros_like(last[:1]), last.clamp(min=0)])  # row 0: for known ones
    ids.copy_(known + table[(-ids).clamp(min=0)])


def row_by_row(ids, last):
    for row in range(len(last)):
        ids.copy_(torch.where(ids == -1 - row, last[row].clamp(min=0), ids))


test_right_feeds = right_answers("16.2", {"a row before the others": with_a_row_before, "row by row": row_by_row})


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


test_wrong_commits = wrong_answers(
    "16.3",
    {
        "-1 where nothing is surplus": (
            lambda seqs, tokens, stop: refusing(lambda rows: rows if len(rows) == len(seqs) else [])(
                seqs, tokens, stop
            ),
            "a -1 for a sequence that has not ended is a ValueError",
        ),
        "the same object": (committing(append_if_same), "stop_token_id=50256"),
        "rows for sequences": (
            lambda seqs, tokens, stop: list(map(seqs.index, committing(append)(seqs, tokens, stop))),
            "returned",
        ),
    },
)


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


test_right_commits = right_answers("16.3", {"taken back after a -1": rolled_back, "new lists, a tuple": with_new_lists})
