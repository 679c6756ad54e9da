"""Checkers of lesson 16: planning while a step is in flight, placeholders, surplus tokens, one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import capture

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.drawn import Comparison, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .overlap_checks import ONE_AHEAD, require_one_ahead

CPU = torch.device("cpu")

# 16.1

Request = tuple[int, int, int, int]  # num_tokens, num_cached, in_flight, max_len


def _describe_plan(requests: list[Request]) -> str:
    names = "num_tokens", "num_cached", "in_flight", "max_len"
    shown = ", ".join("(" + ", ".join(f"{n}={v}" for n, v in zip(names, r, strict=True)) + ")" for r in requests)
    return f"requests=[{shown}]"


def _draw_request(rng: Random) -> Request:
    prompt, max_tokens = rng.randint(1, rng.choice((6, 6, 50_000))), rng.randint(1, 4)
    kind = rng.choice(("decode", "chunk", "whole", "waits", "last"))
    num_tokens = prompt + (rng.randint(1, max_tokens - 1) if kind == "decode" and max_tokens > 1 else 0)
    num_cached, in_flight = num_tokens - 1, 1
    if kind == "chunk":
        num_cached = rng.randint(0, num_tokens - 1)
        in_flight = rng.randint(1, num_tokens - num_cached)
    elif kind == "whole":
        num_cached, in_flight = 0, num_tokens
    elif kind == "waits":
        num_cached, in_flight = rng.randint(0, num_tokens - 1), 0
    elif kind == "last":
        return num_tokens, num_tokens - 1, 1, num_tokens + 1
    return num_tokens, num_cached, in_flight, prompt + max_tokens


def _draw_plan(rng: Random) -> tuple[list[Request]]:
    return ([_draw_request(rng) for _ in range(rng.randint(1, 4))],)


PLANS = [
    ([(3, 2, 1, 6)],),
    ([(3, 0, 3, 5)],),
    ([(5, 0, 2, 8)],),
    ([(5, 2, 0, 8)],),
    ([(3, 2, 1, 4)],),
    ([(3, 2, 0, 4)],),
    ([(5, 2, 3, 6)],),
    ([(1, 0, 1, 2)],),
    ([(5, 0, 2, 8)] * 300,),
    *draw(_draw_plan),
]
AT_ITS_END, LEFT = "0 if length == max_len", "else length - cached"
PLAN_MISTAKES = {
    "all of its tokens have been computed then, so it has one token more": {"num_tokens + gets_token": "num_tokens"},
    "what is in flight counts as computed": {LEFT: "else length - num_cached"},
    "max_len is known ahead: the step in flight gives it its last token, and nothing is left to compute": {
        f"{AT_ITS_END} {LEFT}": "length - cached"
    },
    "with one token more it has not reached max_len yet, so it goes on": {
        AT_ITS_END: f"{AT_ITS_END} or num_tokens + 1 >= max_len - 1"
    },
    "a chunk gets no token: part of the prompt is left": {" and cached == num_tokens": ""},
    "a request that is in flight can be in the next step as well": {AT_ITS_END: f"{AT_ITS_END} or in_flight"},
    "a request that is not in flight still has tokens to compute": {AT_ITS_END: f"{AT_ITS_END} or not in_flight"},
    "of a prompt, all that is left can be computed, not only one token": {LEFT: "else min(1, length - cached)"},
    "a request that is not in flight gets no token from the step": {"in_flight > 0 and": "in_flight == 0 or"},
}

register("16.1", Comparison(PLANS, as_solved("16.1", PLAN_MISTAKES), _describe_plan))

# 16.2


def _draw_feed(rng: Random) -> tuple[list[int], list[int]]:
    largest, num_rows = rng.choice(((90, 5), (90, 5), (90, 5), (2**31 - 1, 5), (2**31 - 1, 400)))
    last = [-1 if rng.random() < 0.1 else rng.randint(0, largest) for _ in range(rng.randint(1, num_rows))]
    unknown = [-1 - rng.randrange(len(last)) for _ in range(rng.randint(0, 4))]
    return unknown + [rng.randint(0, largest) for _ in range(rng.randint(0 if unknown else 1, 4))], last


FEEDS = [
    ([-1], [5]),
    ([7], [5]),
    ([-2, -1], [5, 6]),
    ([-1, 7], [5, 6]),
    ([-2, 8, 9], [5, 6]),
    ([-1, 3], [-1]),
    ([0, 3], [5]),
    *draw(_draw_feed),
]
ROWS = "(-1 - token_ids).clamp(min=0)"
FEED_MISTAKES = {
    "-1 is row 0, and -2 is row 1": {ROWS: "(-token_ids).clamp(0, len(last_tokens) - 1)"},
    "a negative index counts from the end; the row is -1 - id": {ROWS: "token_ids.clamp(max=-1)"},
    "the row is in the placeholder: a sequence may be in another row by now": {
        ROWS: "torch.arange(len(token_ids)).clamp(max=len(last_tokens) - 1)"
    },
    "known tokens stay as they are": {"torch.where(token_ids < 0, tokens, token_ids)": "tokens"},
    "token 0 is known: only negative ids are placeholders": {"token_ids < 0": "token_ids <= 0"},
    "the -1 of a row with NaN is not a token: take 0": {"[rows].clamp(min=0)": "[rows]"},
}
feed = solution("16.2", torch=torch)


def _fed(token_ids: Tensor, last_tokens: Tensor) -> Tensor:
    """Return what token_ids should hold after a feed."""
    fed = token_ids.clone()
    feed(fed, last_tokens)
    return fed


def _feed_with(answer: Callable[..., Any], ids: list[int], last: list[int]) -> dict[str, Tensor]:
    token_ids, last_tokens = torch.tensor(ids, dtype=torch.int32), torch.tensor(last)
    want, before = _fed(token_ids, last_tokens), (last_tokens.clone(),)
    returned = answer(token_ids, last_tokens)
    require_unchanged(before, (last_tokens,), ("last_tokens",), ": it is only read")
    if isinstance(returned, Tensor) and returned.tolist() == want.tolist() != token_ids.tolist():
        raise Wrong("you return the right tokens and have not written them to token_ids, which the step reads")
    return {"token_ids afterwards": token_ids}


FED = Comparison(
    FEEDS,
    as_solved_by_name("16.2", {"token_ids afterwards": FEED_MISTAKES}, explain_tensor, _feed_with, torch=torch),
    inputs("token_ids", "last_tokens"),
    call=_feed_with,
)


@exercise("16.2", FED)
def tokens_by_place(answer: Callable[..., Any]) -> None:
    FED(answer)
    require_all(FEEDS, partial(_judge_replay, answer), FED.describe)


def _judge_replay(answer: Callable[..., Any], ids: list[int], last: list[int]) -> None:
    """Check that an answer with the right tokens writes to the memory of token_ids, on every replay of its graph."""
    given, last_tokens = torch.tensor(ids, dtype=torch.int32), torch.tensor(last)
    token_ids = given.clone()
    memory = token_ids.detach()  # keeps the old memory when an answer gives token_ids another
    answer(token_ids, last_tokens)
    if not torch.equal(memory, _fed(given, last_tokens)):
        raise Wrong("token_ids uses other memory now. The step reads the memory that it used before: write there")
    token_ids.copy_(given)
    try:
        graph = capture(lambda: answer(token_ids, last_tokens), CPU)
    except RuntimeError as error:
        raise Wrong(f"the tokens are right, but the host waits: {error}") from error
    token_ids.copy_(given.flip(0))
    last_tokens.add_(1)
    graph.replay()
    if message := explain_tensor(token_ids, _fed(given.flip(0), last_tokens)):
        raise Wrong(f"captured, and replayed with token_ids={given.flip(0).tolist()}: token_ids afterwards: {message}")


# 16.3

Row = tuple[list[int], int, str | None]  # its tokens, max_len, finish_reason


class Running:
    """A sequence with what exercise 16.3 gives it."""

    def __init__(self, token_ids: list[int], max_len: int, finish_reason: str | None) -> None:
        self.token_ids, self.max_len, self.finish_reason = list(token_ids), max_len, finish_reason

    def __repr__(self) -> str:
        return f"(token_ids={self.token_ids}, max_len={self.max_len}, finish_reason={self.finish_reason!r})"


def _run_commit(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
    seqs = [Running(*row) for row in rows]
    handed = list(seqs), _own_objects(tokens)
    try:
        returned = answer(*handed, stop)
    except ValueError as error:
        surplus = [i for i, (_, _, reason) in enumerate(rows) if reason and tokens[i] == -1]
        if surplus:
            raise Wrong(
                f"a ValueError for row {surplus[0]}, expected none: its token is a surplus ({error})"
            ) from error
        raise
    if handed != (seqs, tokens):
        raise Wrong("you have changed the lists seqs or tokens, which are the caller's: make a copy")
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


STILL_RUN, RETURNED = " if seq.finish_reason is None]", "return [seq for seq, _ in alive]"
UNCHECKED = {"if any(token == -1 for _, token in alive):": "if False:"}  # a surplus token may be -1
COMMIT_MISTAKES = {
    "a sequence that has ended gets no token: it is a surplus": {
        STILL_RUN: "]",
        **UNCHECKED,
        'reason = "': 'reason = seq.finish_reason or "',
    },
    "a sequence that has ended keeps its reason, and gets no token": {
        STILL_RUN: "]",
        **UNCHECKED,
        "append(token)": "append(token); seq.finish_reason = None",
    },
    "tokens belong to rows: leaving out a sequence leaves out its token, not the last one": {
        "[(seq, token) for seq, token in zip(seqs, tokens, strict=True) if seq.finish_reason is None]": (
            "[*zip([seq for seq in seqs if seq.finish_reason is None], tokens)]"
        ),
        **UNCHECKED,
    },
    "only those that have one token more are returned": {RETURNED: "return seqs"},
    "a sequence that ends with this token also has one more": {RETURNED: f"{RETURNED[:-1]}{STILL_RUN}"},
    "the token that ends a request stays in it": {".append(token)": ".extend([token][token == stop_token_id :])"},
    'if both are true, the reason is "stop"': {'"stop"': '"length" if len(seq.token_ids) == seq.max_len else "stop"'},
    "max_len counts the new token": {"== seq.max_len": "> seq.max_len"},
    "one sequence has ended: the tokens of the others still count": {
        STILL_RUN: " if not any(other.finish_reason for other in seqs)]"
    },
}
COMMITTED = Comparison(
    COMMITS, as_solved("16.3", COMMIT_MISTAKES, call=_run_commit), _describe_commit, call=_run_commit
)


@exercise("16.3", COMMITTED)
def surplus_tokens(answer: Callable[..., Any]) -> None:
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


# 16.4

register("16.4", require_one_ahead, ONE_AHEAD)
