"""Checkers of lesson 16: planning while a step is in flight, placeholders, surplus tokens, one step ahead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import capture

from ..exercises.drawn import Comparison, Expected, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .overlap_checks import require_one_ahead
from .surplus_checks import COMMITTED, require_committed

CPU = torch.device("cpu")

# 16.1

Request = tuple[int, int, int, int]  # num_tokens, num_cached, in_flight, max_len
Rule = Callable[[int, int, int, int], int]


def num_new(num_tokens: int, num_cached: int, in_flight: int, max_len: int) -> int:
    cached = num_cached + in_flight
    length = num_tokens + (in_flight > 0 and cached == num_tokens)
    return 0 if length == max_len else length - cached


def for_each(rule: Rule) -> Callable[[list[Request]], list[int]]:
    return lambda requests: [int(rule(*request)) for request in requests]


def _describe_plan(requests: list[Request]) -> str:
    names = "num_tokens", "num_cached", "in_flight", "max_len"
    shown = ", ".join("(" + ", ".join(f"{n}={v}" for n, v in zip(names, r, strict=True)) + ")" for r in requests)
    return f"requests=[{shown}]"


def _draw_request(rng: Random) -> Request:
    prompt, max_tokens = rng.randint(1, rng.choice((6, 6, 5000))), rng.randint(1, 4)
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
    *draw(_draw_plan),
]
PLAN_MISTAKES = {
    why: for_each(rule)
    for why, rule in {
        "all of its tokens have been computed then, so it has one token more": (
            lambda n, cached, flying, most: n - cached - flying
        ),
        "what is in flight counts as computed": lambda n, cached, flying, most: (
            num_new(n, cached, flying, most) + flying if num_new(n, cached, flying, most) else 0
        ),
        "max_len is known ahead: the step in flight gives it its last token, and nothing is left to compute": (
            lambda n, cached, flying, most: n + (flying > 0 and cached + flying == n) - cached - flying
        ),
        "with one token more it has not reached max_len yet, so it goes on": (
            lambda n, cached, flying, most: 0 if n + 1 >= most - 1 else num_new(n, cached, flying, most)
        ),
        "a chunk gets no token: part of the prompt is left": (
            lambda n, cached, flying, most: 0 if n + (flying > 0) == most else n + (flying > 0) - cached - flying
        ),
        "a request that is in flight can be in the next step as well": (
            lambda n, cached, flying, most: 0 if flying else num_new(n, cached, flying, most)
        ),
        "a request that is not in flight still has tokens to compute": (
            lambda n, cached, flying, most: num_new(n, cached, flying, most) if flying else 0
        ),
        "of a prompt, all that is left can be computed, not only one token": (
            lambda n, cached, flying, most: min(1, num_new(n, cached, flying, most))
        ),
        "a request that is not in flight gets no token from the step": lambda n, cached, flying, most: (
            0 if n + 1 == most and not flying else num_new(n, cached, flying, most) + (not flying)
        ),
    }.items()
}

register("16.1", Comparison(PLANS, Expected(for_each(num_new), PLAN_MISTAKES), _describe_plan))

# 16.2


def _rows(ids: Tensor) -> Tensor:
    return (-1 - ids).clamp(min=0)


def fed(ids: Tensor, last: Tensor, rows: Tensor | None = None) -> Tensor:
    """Replace negative ids by tokens of the last step. rows: where the tokens of negative ids stand in `last`."""
    return torch.where(ids < 0, last[_rows(ids) if rows is None else rows].clamp(min=0), ids).int()


def _draw_feed(rng: Random) -> tuple[list[int], list[int]]:
    largest, num_rows = rng.choice(((90, 5), (90, 5), (90, 5), (200_000, 5), (200_000, 400)))
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
FEED_MISTAKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "-1 is row 0, and -2 is row 1": lambda ids, last: fed(ids, last, (-ids).clamp(0, len(last) - 1)),
    "a negative index counts from the end; the row is -1 - id": lambda ids, last: fed(ids, last, ids.clamp(max=-1)),
    "the row is in the placeholder: a sequence may be in another row by now": (
        lambda ids, last: fed(ids, last, torch.arange(len(ids)).clamp(max=len(last) - 1))
    ),
    "known tokens stay as they are": lambda ids, last: last[_rows(ids)].clamp(min=0),
    "token 0 is known: only negative ids are placeholders": lambda ids, last: torch.where(
        ids <= 0, last[_rows(ids)].clamp(min=0), ids
    ),
    "the -1 of a row with NaN is not a token: take 0": lambda ids, last: torch.where(ids < 0, last[_rows(ids)], ids),
}


def _of_case(tokens: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda ids, last: tokens(torch.tensor(ids, dtype=torch.int32), torch.tensor(last)).int()


def _feed_with(answer: Callable[..., Any], ids: list[int], last: list[int]) -> dict[str, Tensor]:
    token_ids, last_tokens = torch.tensor(ids, dtype=torch.int32), torch.tensor(last)
    want, before = fed(token_ids, last_tokens), (last_tokens.clone(),)
    returned = answer(token_ids, last_tokens)
    require_unchanged(before, (last_tokens,), ("last_tokens",), ": it is only read")
    if isinstance(returned, Tensor) and returned.tolist() == want.tolist() != token_ids.tolist():
        raise Wrong("you return the right tokens and have not written them to token_ids, which the step reads")
    return {"token_ids afterwards": token_ids}


FED = Comparison(
    FEEDS,
    {
        "token_ids afterwards": Expected(
            _of_case(fed), {why: _of_case(wrong) for why, wrong in FEED_MISTAKES.items()}, explain_tensor
        )
    },
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
    if not torch.equal(memory, fed(given, last_tokens)):
        raise Wrong("token_ids uses other memory now. The step reads the memory that it used before: write there")
    token_ids.copy_(given)
    try:
        graph = capture(lambda: answer(token_ids, last_tokens), CPU)
    except RuntimeError as error:
        raise Wrong(f"the tokens are right, but the host waits: {error}") from error
    token_ids.copy_(given.flip(0))
    last_tokens.add_(1)
    graph.replay()
    if message := explain_tensor(token_ids, fed(given.flip(0), last_tokens)):
        raise Wrong(f"captured, and replayed with token_ids={given.flip(0).tolist()}: token_ids afterwards: {message}")


# 16.3

register("16.3", require_committed, COMMITTED)

# 16.4

register("16.4", require_one_ahead)
