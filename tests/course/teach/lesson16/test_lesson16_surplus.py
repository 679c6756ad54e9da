"""Lesson 16, surplus tokens: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from wrong_answers import right_answers, wrong_answers


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
