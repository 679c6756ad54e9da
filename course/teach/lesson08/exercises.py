"""Checkers of lesson 08: a draft to repair, and a stage of your own, from one growing tensor to a contender."""

from __future__ import annotations

from typing import Any

import torch

from course.contract import bytes_held
from roseinfer.models import Model
from roseinfer.profiling import bytes_copied
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.exercise import exercise
from ..exercises.stage_checks import equal_step, require_stage, require_tokens
from ..exercises.wrong import Wrong
from .half_stage_checks import require_free, require_own_device, require_prompts, require_sizes, require_torn_prefills
from .room_checks import H_KV, TOKENS_KEPT, D, make_room, require_device, require_rooms_apart

TOKENS = 500
MOST_COPIED = 3  # bytes copied for each byte kept, however the tokens come
FIRST = 16  # tokens, the capacity of a new room


@exercise("08.2", TOKENS_KEPT)
def room_that_doubles(answer: type) -> None:
    if not isinstance(answer, type):
        raise Wrong(f"you give {answer!r}, expected the class Room")
    require_rooms_apart(answer)
    TOKENS_KEPT(answer)
    require_device(answer)
    room, token = make_room(answer), 2 * H_KV * D * torch.float32.itemsize
    k, v = torch.randn(2, 1, H_KV, D, generator=torch.Generator().manual_seed(0))
    copied = bytes_copied(lambda: [room.append(k, v) for _ in range(TOKENS)]).copied
    if bytes_copied(room.kv).copied:
        raise Wrong("the values are right, but kv() copies: return slices of the tensors, self.keys[:, : self.length]")
    if copied > MOST_COPIED * TOKENS * token:
        raise Wrong(
            f"the values are right, but {TOKENS} tokens, one by one, copy {copied / TOKENS / token:.1f} bytes for each "
            f"byte kept; the budget is {MOST_COPIED}. Does the room double, or grow by the same amount each time?"
        )
    _require_doubling(answer)


def _require_doubling(room_class: type) -> None:
    """Raise Wrong unless a room is for FIRST tokens, and for twice as many until those that come fit."""
    for appends in ([1] * TOKENS, [5 * FIRST - 1, 2]):
        room, capacity, num_tokens = make_room(room_class), FIRST, 0
        for number in appends:
            token = torch.zeros(number, H_KV, D)
            room.append(token, token)
            num_tokens += number
            while capacity < num_tokens:
                capacity *= 2
            held, expected = bytes_held(room), 2 * capacity * H_KV * D * token.itemsize
            if held != expected:
                raise Wrong(
                    f"the values are right, but with {num_tokens} tokens, {number} of them just appended, the room "
                    f"holds {held:,} bytes, expected {expected:,}, K and V of {capacity} tokens: it begins with "
                    f"{FIRST}, and doubles until they fit"
                )


@exercise("08.3")
def prompt_in_sequence_out(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    half = type(answer.__name__, (answer,), {"build": _missing, "append": _missing})
    require_sizes(half, model)
    require_prompts(half, model)
    require_free(half, model)
    require_torn_prefills(half, model)
    require_own_device(half)


def _missing(*_: Any) -> None:
    raise Wrong("build and append are not called in a prefill")


@exercise("08.4")
def decode_step_of_your_own(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    require_contract(answer)


@exercise("08.5")
def contender(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    for num_seqs, num_tokens in STEPS:
        _require_no_copies(answer, model, num_seqs, num_tokens)
    require_contract(answer)


@exercise("08.1")
def draft_with_four_mistakes(answer: type[Stage], model: Model) -> None:
    require_stage(answer)
    require_contract(answer)


STEPS = ((1, 20), (4, 100), (2, 170), (9, 40), (17, 30))  # sequences, and tokens of each


def _require_no_copies(stage_class: type[Stage], model: Model, num_seqs: int, num_tokens: int) -> None:
    c = model.config
    new = num_seqs * 2 * c.num_layers * c.num_kv_heads * c.head_dim * model.dtype.itemsize
    step = equal_step(stage_class, model, num_seqs, num_tokens)
    copied = min(bytes_copied(step).copied for _ in range(3))  # one of them may grow
    if copied > 2 * new:
        raise Wrong(
            f"the tokens are right, but a step with {num_seqs} × {num_tokens} tokens cached copies {copied:,} bytes "
            f"({copied / (new * num_tokens):.1f} times all that is cached); the budget is {2 * new:,}. Is "
            "attention given a copy?"
        )
