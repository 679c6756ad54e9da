"""Exercise 16.3: what becomes of a step's tokens when some of its sequences have ended since it was launched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from .drawn import Expected, compare, draw, require_all
from .exercise import Wrong

Row = tuple[list[int], int, str | None]  # its tokens, max_len, finish_reason


def committed(rows: list[Row], tokens: list[int], stop: int) -> tuple[list[Row], list[int]]:
    after, got = [], []
    for i, ((ids, max_len, reason), token) in enumerate(zip(rows, tokens, strict=True)):
        if reason is None:
            ids = [*ids, token]
            reason = "stop" if token == stop else "length" if len(ids) == max_len else None
            got.append(i)
        after.append((ids, max_len, reason))
    return after, got


class Running:
    """A sequence as exercise 16.3 has it."""

    def __init__(self, token_ids: list[int], max_len: int, finish_reason: str | None) -> None:
        self.token_ids, self.max_len, self.finish_reason = list(token_ids), max_len, finish_reason

    def __repr__(self) -> str:
        return f"(token_ids={self.token_ids}, max_len={self.max_len}, finish_reason={self.finish_reason!r})"


def _judged(rows: list[Row], tokens: list[int], stop: int, rule: Callable[..., Any]) -> dict[str, Any]:
    after, got = rule(rows, tokens, stop)
    return {"token_ids": [ids for ids, _, _ in after], "finish_reasons": [r for _, _, r in after], "returned": got}


def _run_commit(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
    seqs = [Running(*row) for row in rows]
    try:
        returned = answer(list(seqs), _own_objects(tokens), stop)
    except ValueError as error:
        surplus = [i for i, (_, _, reason) in enumerate(rows) if reason and tokens[i] == -1]
        if surplus:
            raise Wrong(f"a ValueError for row {surplus[0]}, whose token is a surplus: {error}") from error
        raise
    try:
        places = [next(i for i, seq in enumerate(seqs) if seq is one) for one in returned]
    except (TypeError, StopIteration):
        raise Wrong(f"expected a list of the sequences that have one token more, got {returned!r}") from None
    return {"token_ids": [s.token_ids for s in seqs], "finish_reasons": [s.finish_reason for s in seqs],
            "returned": places}  # fmt: skip


def _own_objects(tokens: list[int]) -> list[int]:
    """Equal numbers that are different objects, as those from a device are."""
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
    """A -1 of a sequence that runs, in any row, beside surplus tokens that may be -1, too."""
    rows, tokens, stop = _draw_commit(rng)
    rows, tokens = [([3], 5, None), *rows], [rng.choice((stop, 4)), *tokens]
    running = [i for i, (_, _, reason) in enumerate(rows) if reason is None]
    tokens[rng.choice(running)] = -1
    return rows, tokens, stop


COMMITS = [
    ([([3], 5, None)], [4], 0), ([([3], 5, None)], [0], 0), ([([3], 2, None)], [4], 0), ([([3], 2, None)], [0], 0),
    ([([3, 0], 5, "stop")], [4], 0), ([([3, 0], 5, "stop"), ([2], 5, None)], [4, 6], 0),
    ([([3], 5, "abort")], [-1], 0), ([([3, 0], 3, "stop"), ([2], 5, None)], [0, 6], 0), ([([3], 5, None)], [7], 7),
    ([([3], 5, None)], [50_256], 50_256),
    ([([3], 5, None)], [0], 7), ([([3, 4], 2, "length"), ([2], 5, None)], [4, 6], 0), *draw(_draw_commit),
]  # fmt: skip
REFUSALS = [
    ([([3], 5, None), ([4], 5, None)], [7, -1], 0), ([([3], 5, None), ([4], 5, None)], [-1, 7], 0),
    ([([3], 5, None)], [-1], 0), ([([3], 5, None), ([4], 2, None), ([5], 5, None)], [0, 8, -1], 0),
    ([([3], 5, "abort"), ([4], 5, None), ([5], 5, None)], [-1, -1, 7], 0), *draw(_draw_refusal),
]  # fmt: skip


def _mistaken(rule: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    return lambda rows, tokens, stop: _judged(rows, tokens, stop, rule)


def _with(change: Callable[..., tuple[list[int], str | None, bool]]) -> Callable[..., dict[str, Any]]:
    """change(ids, max_len, reason, token, stop) -> ids, reason, whether it is returned."""

    def rule(rows: list[Row], tokens: list[int], stop: int) -> tuple[list[Row], list[int]]:
        after, got = [], []
        for i, ((ids, max_len, reason), token) in enumerate(zip(rows, tokens, strict=True)):
            ids, reason, is_returned = change(ids, max_len, reason, token, stop)
            after.append((ids, max_len, reason))
            got += [i] * is_returned
        return after, got

    return _mistaken(rule)


def _why_ended(ids: list[int], max_len: int, token: int, stop: int) -> str | None:
    return "stop" if token == stop else "length" if len(ids) == max_len else None


def _shifted(rows: list[Row], tokens: list[int], stop: int) -> tuple[list[Row], list[int]]:
    alive = [i for i, (_, _, reason) in enumerate(rows) if reason is None]
    moved = list(tokens)
    for place, row in enumerate(alive):
        moved[row] = tokens[place]
    return committed(rows, moved, stop)


COMMIT_MISTAKES: dict[str, Callable[..., Any]] = {
    "whoever has ended gets no token: it is a surplus": _with(
        lambda ids, m, r, t, s: ([*ids, t], r or _why_ended([*ids, t], m, t, s), True)
    ),
    "whoever has ended keeps its reason, and gets no token": _with(
        lambda ids, m, r, t, s: ([*ids, t], _why_ended([*ids, t], m, t, s), True)
    ),
    "tokens belong to rows: with a sequence its token is left out, and not the last one": _mistaken(_shifted),
    "only those that have one token more are returned": _with(
        lambda ids, m, r, t, s: (ids, r, True) if r else ([*ids, t], _why_ended([*ids, t], m, t, s), True)
    ),
    "whoever ends with its token has one more, too": _with(
        lambda ids, m, r, t, s: (ids, r, False) if r
        else ([*ids, t], _why_ended([*ids, t], m, t, s), _why_ended([*ids, t], m, t, s) is None)
    ),
    "the token that ends a request stays in it": _with(
        lambda ids, m, r, t, s: (ids, r, False) if r
        else ((ids, "stop", True) if t == s else ([*ids, t], _why_ended([*ids, t], m, t, s), True))
    ),
    '"stop" goes before "length"': _with(
        lambda ids, m, r, t, s: (ids, r, False) if r
        else ([*ids, t], "length" if len(ids) + 1 == m else "stop" if t == s else None, True)
    ),
    "max_len counts the new token": _with(
        lambda ids, m, r, t, s: (ids, r, False) if r else ([*ids, t], _why_ended(ids, m, t, s), True)
    ),
    "somebody ended: the tokens of the others are none the worse": _mistaken(
        lambda rows, tokens, stop: (list(rows), []) if any(r for _, _, r in rows) else committed(rows, tokens, stop)
    ),
}  # fmt: skip


def _judge_refusal(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> None:
    seqs = [Running(*row) for row in rows]
    try:
        answer(list(seqs), _own_objects(tokens), stop)
    except ValueError:
        after = [(seq.token_ids, seq.max_len, seq.finish_reason) for seq in seqs]
        if after != rows:
            changed = next(i for i, row in enumerate(rows) if after[i] != row)
            raise Wrong(
                f"a ValueError, but something was appended before it, or a sequence ended: sequence {changed} is now "
                f"{seqs[changed]}"
            ) from None
        return
    row = next(i for i, (_, _, reason) in enumerate(rows) if reason is None and tokens[i] == -1)
    raise Wrong(f"expected a ValueError, since the -1 of row {row} is no token, and nothing was raised")


def require_committed(answer: Callable[..., Any]) -> None:
    """Raises Wrong unless surplus tokens are left out, and all others appended."""
    expected = Expected(lambda rows, tokens, stop: _judged(rows, tokens, stop, committed), COMMIT_MISTAKES)
    compare(answer, COMMITS, expected, _describe_commit, _run_commit)
    require_all(REFUSALS, partial(_judge_refusal, answer), _describe_commit)
