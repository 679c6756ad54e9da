"""Checkers of lesson 16: planning behind a step in flight, tokens by their place, surplus tokens, one step behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import capture
from roseinfer.stage import Stage

from .drawn import Expected, compare, draw, require_all
from .exercise import Wrong, exercise
from .explain import explain_tensor
from .overlap_checks import require_one_behind
from .surplus_checks import require_committed
from .tensor_checks import require_unchanged

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


@exercise(
    "16.1",
    title="What comes behind a step in flight",
    minutes=10,
    difficulty=2,
    importance=5,
    stub="def plan_next(requests): ...",
    task="A step is in flight, and the next one is to be planned. `requests` has four numbers for each sequence that "
    "runs: `num_tokens` that the host knows, `num_cached` of them before the step in flight, how many the step "
    "`in_flight` computes (0: it is not in it), and `max_len`, its tokens when it ends. Return a list: how many "
    "tokens of each sequence **can** be computed in the next step. A chunk of a prompt gets no token; a sequence "
    "whose tokens have all been computed gets one. Whoever has `max_len` tokens then has nothing left to compute.",
    hints=(
        "Two numbers of each sequence change with the step in flight: how many tokens are cached, and how many it has.",
        "It has one token more if the step in flight computes the last of those that it has. If a part of the prompt "
        "is left, it has as many as before.",
        "What can be computed is what it has and is not cached. It is 0 where the new length is max_len: the last "
        "token is returned, and never computed.",
    ),
)
def what_comes_next(answer: Callable[..., object]) -> None:
    compare(answer, PLANS, Expected(for_each(num_new), PLAN_MISTAKES), _describe_plan)


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
    ([(3, 2, 1, 6)],), ([(3, 0, 3, 5)],), ([(5, 0, 2, 8)],), ([(5, 2, 0, 8)],), ([(3, 2, 1, 4)],), ([(3, 2, 0, 4)],),
    ([(5, 2, 3, 6)],), ([(1, 0, 1, 2)],), *draw(_draw_plan),
]  # fmt: skip
PLAN_MISTAKES: dict[str, Callable[..., Any]] = {
    "its tokens have all been computed then, and so it has one token more": for_each(
        lambda n, cached, flying, most: n - cached - flying
    ),
    "what is in flight is computed already": for_each(
        lambda n, cached, flying, most: num_new(n, cached, flying, most) + flying
        if num_new(n, cached, flying, most) else 0
    ),
    "max_len is foreseen: it gets its last token by the step in flight, and nothing is left to compute": for_each(
        lambda n, cached, flying, most: n + (flying > 0 and cached + flying == n) - cached - flying
    ),
    "with one token more it does not have max_len yet, and goes on": for_each(
        lambda n, cached, flying, most: 0 if n + 1 >= most - 1 else num_new(n, cached, flying, most)
    ),
    "a chunk gets no token: part of the prompt is left": for_each(
        lambda n, cached, flying, most: 0 if n + (flying > 0) == most else n + (flying > 0) - cached - flying
    ),
    "who is in flight can be in the next step as well": for_each(
        lambda n, cached, flying, most: 0 if flying else num_new(n, cached, flying, most)
    ),
    "who is not in flight has its tokens still to be computed": for_each(
        lambda n, cached, flying, most: num_new(n, cached, flying, most) if flying else 0
    ),
    "of a prompt, all that is left can be computed, not one token": for_each(
        lambda n, cached, flying, most: min(1, num_new(n, cached, flying, most))
    ),
    "who is not in flight gets no token from it": for_each(
        lambda n, cached, flying, most: 0 if n + 1 == most and not flying else num_new(n, cached, flying, most)
        + (not flying)
    ),
}  # fmt: skip


# 16.2


@exercise(
    "16.2",
    title="Tokens that are known by their place",
    minutes=12,
    difficulty=2,
    importance=5,
    stub="def feed(token_ids, last_tokens): ...",
    task="Where the host did not know a token, it has written `-1 - row` into `token_ids` `[N]` (int32): the token is "
    "`last_tokens[row]` (`[S]`, int64), where the step before has left it on the device. Put these tokens into their "
    "places, **in place**, and leave the others alone. It runs on the device behind the step before: the host must "
    "not read a value, nor choose rows by their values, which would wait for their number. A graph of `feed` does "
    "the same for what lies in both tensors at its replay. A row with NaN left a -1 in "
    "`last_tokens`; that step will be dropped, but an embedding must not be asked for row -1: take token 0.",
    hints=(
        "Compute for every place what it would be if it were unknown, and let torch.where choose. -1 - id is the row.",
        "For known tokens -1 - id is negative, no row: clamp it, since what is found there is not used.",
        "tokens = last_tokens[rows].clamp(min=0); token_ids.copy_(...) writes in place and converts to int32.",
    ),
)
def tokens_by_place(answer: Callable[..., Any]) -> None:
    require_all(FEEDS, partial(_judge_feed, answer), _describe_feed)


def fed(ids: Tensor, last: Tensor) -> Tensor:
    return torch.where(ids < 0, last[(-1 - ids).clamp(min=0)].clamp(min=0), ids).int()


def _draw_feed(rng: Random) -> tuple[list[int], list[int]]:
    largest, num_rows = rng.choice(((90, 5), (90, 5), (90, 5), (200_000, 5), (200_000, 400)))
    last = [-1 if rng.random() < 0.1 else rng.randint(0, largest) for _ in range(rng.randint(1, num_rows))]
    unknown = [-1 - rng.randrange(len(last)) for _ in range(rng.randint(0, 4))]
    return unknown + [rng.randint(0, largest) for _ in range(rng.randint(0 if unknown else 1, 4))], last


FEEDS = [
    ([-1], [5]), ([7], [5]), ([-2, -1], [5, 6]), ([-1, 7], [5, 6]), ([-2, 8, 9], [5, 6]), ([-1, 3], [-1]),
    ([0, 3], [5]), *draw(_draw_feed),
]  # fmt: skip
FEED_MISTAKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "-1 is row 0, and -2 is row 1": lambda ids, last: torch.where(
        ids < 0, last[(-ids).clamp(0, len(last) - 1)].clamp(min=0), ids
    ),
    "a negative index counts from the end: -1 - id is the row": lambda ids, last: torch.where(
        ids < 0, last[ids.clamp(max=-1)].clamp(min=0), ids
    ),
    "the row stands in the id: sequences may have changed their places since": lambda ids, last: torch.where(
        ids < 0, last[torch.arange(len(ids)).clamp(max=len(last) - 1)].clamp(min=0), ids
    ),
    "known tokens stay as they are": lambda ids, last: last[(-1 - ids).clamp(min=0)].clamp(min=0),
    "token 0 is known: only negative ids are places": lambda ids, last: torch.where(
        ids <= 0, last[(-1 - ids).clamp(min=0)].clamp(min=0), ids
    ),
    "a -1 of a row with NaN is no token, take 0 for it": lambda ids, last: torch.where(
        ids < 0, last[(-1 - ids).clamp(min=0)], ids
    ),
}


def _describe_feed(ids: list[int], last: list[int]) -> str:
    return f"token_ids={ids}, last_tokens={last}"


def _judge_feed(answer: Callable[..., Any], ids: list[int], last: list[int]) -> None:
    given, last_tokens = torch.tensor(ids, dtype=torch.int32), torch.tensor(last)
    want, before = fed(given, last_tokens), (last_tokens.clone(),)
    token_ids = given.clone()
    memory = token_ids.detach()  # stays where token_ids lay, whatever becomes of token_ids
    returned = answer(token_ids, last_tokens)
    require_unchanged(before, (last_tokens,), ("last_tokens",), ": it is only read")
    if message := explain_tensor(token_ids, want):
        if isinstance(returned, Tensor) and returned is not token_ids and returned.tolist() == want.tolist():
            raise Wrong("the right tokens are returned, but not in token_ids: the step reads that memory")
        raise Wrong(f"token_ids afterwards: {message}" + _why_fed(answer))
    if not torch.equal(memory, want):
        raise Wrong("token_ids lies in other memory now: the step reads where it lay before, so write there")
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


def _why_fed(answer: Callable[..., Any]) -> str:
    """The mistake that gives what the answer gives, in every case."""

    def results() -> list[tuple[Tensor, Tensor, Tensor]]:
        out = []
        for ids, last in FEEDS:
            given, last_tokens = torch.tensor(ids, dtype=torch.int32), torch.tensor(last)
            token_ids = given.clone()
            answer(token_ids, last_tokens)
            out.append((given, last_tokens, token_ids))
        return out

    try:
        got = results()
    except Exception:
        return ""
    for why, mistaken in FEED_MISTAKES.items():
        if all(torch.equal(mistaken(ids, last).int(), after) for ids, last, after in got):
            return f": {why}"
    return ""


# 16.3


@exercise(
    "16.3",
    title="A token too many",
    minutes=12,
    difficulty=2,
    importance=4,
    stub="def commit_late(seqs, tokens, stop_token_id): ...",
    task="A step is over. `seqs` are its sequences, in the order of its rows, and `tokens` has a token for each row. "
    "Since it was launched some have ended: their `finish_reason` is no longer None, and their token is a surplus. "
    "Append each other token to its sequence's `token_ids`. Whoever gets `stop_token_id` ends with "
    '`finish_reason = "stop"` (the token stays), whoever has `max_len` tokens with `"length"`; "stop" goes before. '
    "Return the sequences that have one token more, in the order of their rows. A surplus token may be anything, -1 of "
    "a row with NaN as well. A -1 for a sequence that has not ended, in any row, is a ValueError. It is raised before "
    "any sequence is changed.",
    hints=(
        "Tokens belong to rows. If you leave sequences out, leave out their tokens with them.",
        "Look for a -1 first, among the rows of sequences that have not ended.",
        "Append, then judge the sequence by its new token and its new length.",
    ),
)
def token_too_many(answer: Callable[..., Any]) -> None:
    require_committed(answer)


# 16.4


@exercise(
    "16.4",
    title="One step behind",
    minutes=25,
    difficulty=4,
    importance=5,
    stub="class OneBehind(TakingTurns): ...",
    task="`TakingTurns` launches a step and asks for its tokens at once. Write `step` anew, so that the next step is "
    "launched before the tokens of the one in flight are asked for. You have: `self.in_flight`, a list; "
    "`with self.ahead():`, in which all is as if the step in flight were over; `self.schedule()`, which gives `seqs, "
    "num_new`, or raises `OutOfBlocks` when nothing can be computed before the step in flight is over; "
    "`self.launch(seqs, num_new)`; `self.finish()`, which ends the oldest step and returns its sequences; "
    "`self.drop()`, for after an error. `step` returns the sequences that have one token more, or an empty list. An "
    "error may come from any of these calls, and Ctrl-C (`KeyboardInterrupt`) too. Then call `self.drop()`, so that no "
    "step is in flight, and raise the same error again.",
    hints=(
        "Look first whether a step is in flight: it is the one to be finished at the end, if it was there before.",
        "When schedule raises OutOfBlocks nothing is launched, and the step in flight is finished all the same: "
        "contextlib.suppress, or try and except.",
        "Any error, Ctrl-C as well: self.drop(), and raise it again. A step in flight whose input has failed must not "
        "be finished.",
    ),
)
def one_step_behind(answer: type[Stage]) -> None:
    require_one_behind(answer)
