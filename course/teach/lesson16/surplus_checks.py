"""Exercise 16.3: committing a step's tokens when some of its sequences have ended since it was launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ..exercises.drawn import Comparison, Expected, draw, require_all
from ..exercises.wrong import Wrong

Row = tuple[list[int], int, str | None]  # its tokens, max_len, finish_reason


class Running:
    """A sequence with what exercise 16.3 gives it."""

    def __init__(self, token_ids: list[int], max_len: int, finish_reason: str | None) -> None:
        self.token_ids, self.max_len, self.finish_reason = list(token_ids), max_len, finish_reason

    def __repr__(self) -> str:
        return f"(token_ids={self.token_ids}, max_len={self.max_len}, finish_reason={self.finish_reason!r})"


def _run_commit(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
    seqs = [Running(*row) for row in rows]
    try:
        returned = answer(list(seqs), _own_objects(tokens), stop)
    except ValueError as error:
        surplus = [i for i, (_, _, reason) in enumerate(rows) if reason and tokens[i] == -1]
        if surplus:
            raise Wrong(
                f"a ValueError for row {surplus[0]}, expected none: its token is a surplus ({error})"
            ) from error
        raise
    try:
        places = [next(i for i, seq in enumerate(seqs) if seq is one) for one in returned]
    except (TypeError, StopIteration):
        raise Wrong(f"expected a list of the sequences that have one token more, got {returned!r}") from None
    return {
        "token_ids": [s.token_ids for s in seqs],
        "finish_reasons": [s.finish_reason for s in seqs],
        "returned": places,
    }


def _own_objects(tokens: list[int]) -> list[int]:
    """Copy the numbers to objects of their own, since those from a device are never the same objects."""
    return [int(str(token)) for token in tokens]


def _describe_commit(rows: list[Row], tokens: list[int], stop: int) -> str:
    return f"seqs={[Running(*row) for row in rows]}, tokens={tokens}, stop_token_id={stop}"


def _draw_commit(rng: Random) -> tuple[list[Row], list[int], int]:
    stop, most_rows, most_tokens = rng.choice(((0, 4, 3), (0, 4, 3), (7, 4, 3), (50_256, 12, 40)))
    rows: list[Row] = []
    tokens = []
    for _ in range(rng.randint(1, most_rows)):
        ids = [rng.randint(1, 9) for _ in range(rng.randint(1, most_tokens))]
        reason = rng.choice((None, None, None, "stop", "length", "abort"))
        rows.append((ids, len(ids) + rng.randint(1, 2), reason))
        tokens.append(rng.choice((-1, 5, 0)) if reason else rng.choice((0, stop, *range(1, 9), 50_000)))
    return rows, tokens, stop


def _draw_refusal(rng: Random) -> tuple[list[Row], list[int], int]:
    """Draw a batch with a -1 for a running sequence, in any row, beside surplus tokens that may also be -1."""
    rows, tokens, stop = _draw_commit(rng)
    rows, tokens = [([3], 5, None), *rows], [rng.choice((stop, 4)), *tokens]
    running = [i for i, (_, _, reason) in enumerate(rows) if reason is None]
    tokens[rng.choice(running)] = -1
    return rows, tokens, stop


COMMITS = [
    ([([3], 5, None)], [4], 0),
    ([([3], 5, None)], [0], 0),
    ([([3], 2, None)], [4], 0),
    ([([3], 2, None)], [0], 0),
    ([([3, 0], 5, "stop")], [4], 0),
    ([([3, 0], 5, "stop"), ([2], 5, None)], [4, 6], 0),
    ([([3], 5, "abort")], [-1], 0),
    ([([3, 0], 3, "stop"), ([2], 5, None)], [0, 6], 0),
    ([([3], 5, None)], [7], 7),
    ([([3], 5, None)], [50_256], 50_256),
    ([([3], 5, None)], [0], 7),
    ([([3, 4], 2, "length"), ([2], 5, None)], [4, 6], 0),
    *draw(_draw_commit),
]
REFUSALS = [
    ([([3], 5, None), ([4], 5, None)], [7, -1], 0),
    ([([3], 5, None), ([4], 5, None)], [-1, 7], 0),
    ([([3], 5, None)], [-1], 0),
    ([([3], 5, None), ([4], 2, None), ([5], 5, None)], [0, 8, -1], 0),
    ([([3], 5, "abort"), ([4], 5, None), ([5], 5, None)], [-1, -1, 7], 0),
    *draw(_draw_refusal),
]


# ids, max_len, reason, token, stop -> ids, reason, whether it is returned
Change = Callable[[list[int], int, str | None, int, int], tuple[list[int], str | None, bool]]


def _each(change: Change) -> Callable[..., dict[str, Any]]:
    """Make a commit that changes row by row."""

    def commit(rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
        after = [change(*row, token, stop) for row, token in zip(rows, tokens, strict=True)]
        return {
            "token_ids": [ids for ids, _, _ in after],
            "finish_reasons": [reason for _, reason, _ in after],
            "returned": [i for i, (_, _, is_returned) in enumerate(after) if is_returned],
        }

    return commit


def _each_running(change: Callable[..., tuple[list[int], str | None, bool]]) -> Callable[..., dict[str, Any]]:
    """Make a commit that changes only rows that have not ended. change: as in _each, without a reason."""
    return _each(lambda ids, m, r, t, s: (ids, r, False) if r else change(ids, m, t, s))


def _end(ids: list[int], max_len: int, token: int, stop: int) -> str | None:
    return "stop" if token == stop else "length" if len(ids) == max_len else None


committed = _each_running(lambda ids, m, t, s: ([*ids, t], _end([*ids, t], m, t, s), True))
_nothing = _each(lambda ids, m, r, t, s: (ids, r, False))


def _shifted(rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
    alive = [i for i, (_, _, reason) in enumerate(rows) if reason is None]
    moved = list(tokens)
    for place, row in enumerate(alive):
        moved[row] = tokens[place]
    return committed(rows, moved, stop)


COMMIT_MISTAKES: dict[str, Callable[..., Any]] = {
    "a sequence that has ended gets no token: it is a surplus": _each(
        lambda ids, m, r, t, s: ([*ids, t], r or _end([*ids, t], m, t, s), True)
    ),
    "a sequence that has ended keeps its reason, and gets no token": _each(
        lambda ids, m, r, t, s: ([*ids, t], _end([*ids, t], m, t, s), True)
    ),
    "tokens belong to rows: leaving out a sequence leaves out its token, not the last one": _shifted,
    "only those that have one token more are returned": _each(
        lambda ids, m, r, t, s: (ids, r, True) if r else ([*ids, t], _end([*ids, t], m, t, s), True)
    ),
    "a sequence that ends with this token also has one more": _each_running(
        lambda ids, m, t, s: ([*ids, t], _end([*ids, t], m, t, s), not _end([*ids, t], m, t, s))
    ),
    "the token that ends a request stays in it": _each_running(
        lambda ids, m, t, s: (ids if t == s else [*ids, t], _end([*ids, t], m, t, s), True)
    ),
    'if both are true, the reason is "stop"': _each_running(
        lambda ids, m, t, s: ([*ids, t], "length" if len(ids) + 1 == m else _end(ids, m, t, s), True)
    ),
    "max_len counts the new token": _each_running(lambda ids, m, t, s: ([*ids, t], _end(ids, m, t, s), True)),
    "one sequence has ended: the tokens of the others still count": lambda rows, tokens, stop: (
        _nothing if any(reason for _, _, reason in rows) else committed
    )(rows, tokens, stop),
}
COMMITTED = Comparison(COMMITS, Expected(committed, COMMIT_MISTAKES), _describe_commit, call=_run_commit)


def require_committed(answer: Callable[..., Any]) -> None:
    """Raise Wrong unless surplus tokens are left out, and all others appended."""
    COMMITTED(answer)
    require_all(REFUSALS, partial(_judge_refusal, answer), _describe_commit)


def _judge_refusal(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> None:
    seqs = [Running(*row) for row in rows]
    try:
        answer(list(seqs), _own_objects(tokens), stop)
    except ValueError:
        after = [(seq.token_ids, seq.max_len, seq.finish_reason) for seq in seqs]
        if after != rows:
            changed = next(i for i, row in enumerate(rows) if after[i] != row)
            raise Wrong(
                f"a ValueError, expected before any change, but something was appended before it, or a sequence ended: "
                f"sequence {changed} is now {seqs[changed]}"
            ) from None
        return
    row = next(i for i, (_, _, reason) in enumerate(rows) if reason is None and tokens[i] == -1)
    raise Wrong(f"nothing was raised, expected a ValueError: the -1 of row {row} is not a token")
