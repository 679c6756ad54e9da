"""Checkers of lesson 16: planning while a step is in flight, placeholders, surplus tokens, one step ahead."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from roseinfer.graphs import capture
from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw, inputs
from ..exercises.exercise import register
from ..exercises.explain import explain_tensor
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong, value_or_refusal
from .overlap_checks import ONE_AHEAD, require_one_ahead

# 16.1


# What a plan knows of a running sequence.
Request = namedtuple("Request", ("num_tokens", "num_cached", "in_flight", "max_len"))


def _draw_request(rng: Random) -> Request:
    num_tokens = rng.randint(1, rng.choice((6, 6, 50_000)))
    num_cached = rng.choice((num_tokens - 1, rng.randrange(num_tokens)))
    left = num_tokens - num_cached
    return Request(num_tokens, num_cached, rng.choice((0, left, rng.randint(1, left))), num_tokens + rng.randint(1, 3))


AT_ITS_END, LEFT = "0 if length == max_len", "else length - cached"
PLAN_MISTAKES = {
    "all of its tokens have been computed then, so it has one token more": {"num_tokens + gets_token": "num_tokens"},
    "what is in flight counts as computed": {LEFT: "else length - num_cached"},
    "max_len is known ahead: the step in flight gives it its last token, and nothing is left to compute": {
        f"{AT_ITS_END} {LEFT}": "length - cached"
    },
    "a chunk gets no token: part of the prompt is left": {" and cached == num_tokens": ""},
    "a request that is in flight can be in the next step as well": {AT_ITS_END: f"{AT_ITS_END} or in_flight"},
    "of a prompt, all that is left can be computed, not only one token": {LEFT: "else min(1, length - cached)"},
}
PLANS = draw(lambda rng: ([_draw_request(rng) for _ in range(rng.choice((1, 1, 2, 3, 4, 300)))],), 100)
register("16.1", Comparison(PLANS, as_solved("16.1", PLAN_MISTAKES), inputs("requests")))

# 16.2


def _draw_feed(rng: Random) -> tuple[list[int], list[int]]:
    largest, num_rows = rng.choice(((90, 5), (90, 5), (90, 5), (2**31 - 1, 5), (2**31 - 1, 400)))
    last = [-1 if rng.random() < 0.1 else rng.randint(0, largest) for _ in range(rng.randint(1, num_rows))]
    unknown = [-1 - rng.randrange(len(last)) for _ in range(rng.randint(0, 4))]
    return unknown + [rng.randint(0, largest) for _ in range(rng.randint(0 if unknown else 1, 4))], last


ROWS = "(-1 - token_ids).clamp(min=0)"
FEED_MISTAKES = {
    "the step reads the memory of token_ids: write the tokens there": {"token_ids.copy_": "token_ids.clone().copy_"},
    "-1 is row 0, and -2 is row 1": {ROWS: "(-token_ids).clamp(0, len(last_tokens) - 1)"},
    "the row is in the placeholder: a sequence may be in another row by now": {
        ROWS: "torch.arange(len(token_ids)).clamp(max=len(last_tokens) - 1)"
    },
    "known tokens stay as they are": {"torch.where(token_ids < 0, tokens, token_ids)": "tokens"},
    "token 0 is known: only negative ids are placeholders": {"token_ids < 0": "token_ids <= 0"},
    "the -1 of a row with NaN is not a token: take 0": {"[rows].clamp(min=0)": "[rows]"},
}


def _replay(answer: Callable[..., Any], ids: list[int], last: list[int]) -> Tensor:
    """Return what token_ids holds after the replay of a graph that was captured with other values."""
    host, last_tokens = torch.tensor(ids[::-1], dtype=torch.int32), torch.tensor(last[::-1])
    token_ids = host.clone()
    memory = token_ids.detach()

    def step() -> None:
        token_ids.copy_(host)
        answer(token_ids, last_tokens)

    try:
        graph = capture(step, torch.device("cpu"))
    except RuntimeError as error:
        raise Wrong(f"the host waits: {error}") from error
    host.copy_(torch.tensor(ids))
    last_tokens.copy_(torch.tensor(last))
    graph.replay()
    require_unchanged([torch.tensor(last)], [last_tokens], ["last_tokens"], ": it is only read")
    return memory


register(
    "16.2",
    Comparison(
        draw(_draw_feed, 60),
        as_solved("16.2", FEED_MISTAKES, explain_tensor, _replay, torch=torch),
        inputs("captured, and then replayed with token_ids", "last_tokens"),
        _replay,
    ),
)

# 16.3


Row = tuple[list[int], int, str | None]  # of a sequence: token_ids, max_len, finish_reason


def _commit(answer: Callable[..., Any], rows: list[Row], tokens: list[int], stop: int) -> dict[str, Any]:
    seqs = [Sequence(ids, SamplingParams(max_tokens=max_len - len(ids))) for ids, max_len, _ in rows]
    for seq, (_, _, reason) in zip(seqs, rows, strict=True):
        seq.finish_reason = reason
    handed, numbers = list(seqs), {id(seq): i for i, seq in enumerate(seqs)}
    is_bad = any(token == -1 and seq.finish_reason is None for seq, token in zip(seqs, tokens, strict=True))
    returned = value_or_refusal(partial(answer, handed, tokens, stop), is_due=is_bad)
    if handed != seqs:
        raise Wrong("you have changed the list seqs, which is the caller's: make a copy")
    if isinstance(returned, (list, tuple)):
        returned = [numbers.get(id(seq), repr(seq)) for seq in returned]
    return {
        "token_ids": [seq.token_ids for seq in seqs],
        "finish_reasons": [seq.finish_reason for seq in seqs],
        "returned": returned,
    }


def _draw_commit(rng: Random) -> tuple[list[Row], list[int], int]:
    """Draw a batch; in some, a -1 may be the token of a running sequence, in any row, also where none is a surplus."""
    stop, most_rows, most_tokens = rng.choice(((0, 4, 3), (0, 4, 3), (7, 4, 3), (50_256, 12, 40)))
    num_rows, share_ended, share_bad = rng.randint(1, most_rows), rng.choice((0.0, 0.5)), rng.choice((0.0, 0.0, 0.4))
    rows: list[Row] = []
    tokens = []
    for _ in range(num_rows):
        ids = [rng.randint(1, 9) for _ in range(rng.randint(1, most_tokens))]
        reason = rng.choice(("stop", "length", "abort")) if rng.random() < share_ended else None
        rows.append((ids, len(ids) + rng.randint(1, 2), reason))
        token = rng.choice((-1, 5, 0)) if reason else rng.choice((0, stop, stop, *range(1, 9), 50_000))
        tokens.append(-1 if rng.random() < share_bad else int(str(token)))  # an object of its own, as from a device
    return rows, tokens, stop


STILL_RUN, RETURNED = " if seq.finish_reason is None]", "return [seq for seq, _ in alive]"
IS_BAD, APPENDED = "any(token == -1 for _, token in alive)", "seq.token_ids.append(token)"
UNCHECKED = {IS_BAD: "False"}
COMMIT_MISTAKES = {
    "a sequence that has ended gets no token: it is a surplus": {
        STILL_RUN: "]",
        **UNCHECKED,
        'reason = "': 'reason = seq.finish_reason or "',
    },
    "tokens belong to rows: leaving out a sequence leaves out its token, not the last one": {
        "[(seq, token) for seq, token in zip(seqs, tokens, strict=True) if seq.finish_reason is None]": (
            "[*zip([seq for seq in seqs if seq.finish_reason is None], tokens)]"
        ),
        **UNCHECKED,
    },
    "the token that ends a request stays in it": {".append(token)": ".extend([token][token == stop_token_id :])"},
    'if both are true, the reason is "stop"': {'"stop"': '"length" if len(seq.token_ids) == seq.max_len else "stop"'},
    "a -1 for a sequence that has not ended is a ValueError": UNCHECKED,
    "the ValueError is raised before any sequence is changed": {
        **UNCHECKED,
        APPENDED: f"if token == -1:\n            raise ValueError\n        {APPENDED}",
    },
}
COMMITS = [([([3], 5, None)], [4], 0), ([([3], 2, None)], [0], 0), *draw(_draw_commit, 150)]
COMMITTED = as_solved("16.3", COMMIT_MISTAKES, call=_commit)
GIVEN = inputs("seqs with (token_ids, max_len, finish_reason)", "tokens", "stop_token_id")
register("16.3", Comparison(COMMITS, COMMITTED, GIVEN, _commit))

# 16.4

register("16.4", require_one_ahead, ONE_AHEAD)
