"""Checkers of lesson 11: masks, the exponential race, inputs that stay int32, and a step that chooses well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course.contract.broken_promises import count
from roseinfer.graphs import capture
from roseinfer.models import Model
from roseinfer.profiling import host_reads
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Call, Comparison, draw, require_all
from ..exercises.exercise import exercise
from ..exercises.explain import explain_tensor
from ..exercises.solutions import solution
from ..exercises.stage_checks import require_tokens
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .choice_checks import require_choices, require_finite, require_sampled, require_thrifty

# 11.1 and 11.2

Given = Callable[..., tuple[Tensor, ...]]  # makes an answer's arguments of a case


def _on(given: Given) -> Call:
    return lambda answer, *case: answer(*given(*case))


def _without_reads(given: Given, *names: str) -> Call:
    """Make a call that raises Wrong if an answer changes its arguments, or if the host reads anything."""

    def call(answer: Callable[..., Tensor], *case: Any) -> Tensor:
        before, handed, got = given(*case), given(*case), []
        found = host_reads(lambda: got.append(answer(*handed)))
        require_unchanged(before, handed, names)
        if found.reads:
            calls = ", ".join(sorted(found.by_call))
            raise Wrong(
                f"the host reads {count(found.reads, 'time')} ({calls}), expected 0: on a GPU each read is a wait"
            )
        return got[0]

    return call


def _require_capture(answer: Callable[..., Tensor], handed: tuple[Tensor, ...]) -> None:
    """Raise Wrong if the host waits for the answer in a way that host_reads does not see, such as numpy()."""
    try:
        capture(lambda: answer(*handed), handed[0].device)
    except RuntimeError as error:
        raise Wrong(f"the result is right, but the host waits: {error}") from error


def _draw_masked(rng: Random) -> tuple[int, int, int]:
    return rng.randint(1, 4), rng.choice((3, 8, 31, 32, 33, 40, 64, 70)), rng.randrange(1000)


# rows, vocabulary, seed
MASKED = [(1, 2, 0), (1, 3, 1), (2, 3, 2), (1, 32, 3), (1, 33, 4), (2, 40, 5), (9, 300, 6), *draw(_draw_masked)]


def _mask_tensors(rows: int, vocab: int, seed: int) -> tuple[Tensor, ...]:
    """Draw the tensors of a case. All numbers are quarters, so that sums are exact in any order."""
    ints = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    logits = ints(-40, 40, (rows, vocab)) / 4
    allowed = ints(-(2**31), 2**31, (rows, -(-vocab // 32))).int()
    counts = ints(0, 4, (rows, vocab))
    presence, frequency = (ints(-8, 9, (rows,)) / 4 for _ in range(2))
    counts[ints(0, 4, (rows, vocab)) == 0] *= 25_000  # more than 16 bits hold
    return logits, allowed, counts, presence, frequency


MASK_MISTAKES = {
    "bit 0 of a word is its lowest bit": {"(tokens % 32)": "(31 - tokens % 32)"},
    "a 1 allows the token, and a 0 does not": {"bits.bool()": "~bits.bool()"},
    "token j is bit j % 32 of word j // 32": {
        "tokens // 32": "tokens % allowed.shape[1]",
        "tokens % 32": "tokens // allowed.shape[1]",
    },
    "each row has its own words": {"allowed[:,": "allowed[:1,"},
    "bit 31 is a bit like the others, though it makes its word negative": {"& 1": "& 1 & (tokens % 32 < 31)"},
    "only the lowest bit of a shifted word belongs to the token": {" & 1": ""},
    "the grammar is missing: a token that is not allowed gets -inf": {
        "torch.where(bits.bool(), penalised, -torch.inf)": "penalised"
    },
    "a token that is not allowed gets -inf, not 0": {"-torch.inf": "0.0"},
    "the presence penalty counts once, however often the token came": {"(counts > 0)": "counts"},
    "the frequency penalty counts every time": {"* counts": "* (counts > 0)"},
    "penalties are subtracted": {"logits - ": "logits + ", " - presence": " + presence"},
    "a token that has not come has no penalty": {" * (counts > 0)": ""},
    "presence and frequency are swapped": {
        "counts - presence": "(counts > 0) - presence",
        "* (counts > 0)\n": "* counts\n",
    },
    "the penalties are missing": {"penalised, -": "logits, -"},
}
MASKS = Comparison(
    MASKED,
    as_solved("11.1", MASK_MISTAKES, explain_tensor, _on(_mask_tensors), torch=torch),
    lambda rows, vocab, seed: f"{count(rows, 'row')}, {count(vocab, 'token')}, seed {seed}",
    call=_without_reads(_mask_tensors, "logits", "allowed", "counts", "presence", "frequency"),
)


@exercise("11.1", MASKS)
def own_mask(answer: Callable[..., Tensor]) -> None:
    MASKS(answer)
    _require_capture(answer, _mask_tensors(2, 40, 5))


def _draw_race(rng: Random) -> tuple[tuple[float, ...], int, int]:
    temperatures = tuple(rng.choice((0.0, 0.05, 0.3, 0.7, 1.0, 2.0, 30.0)) for _ in range(rng.randint(1, 5)))
    return temperatures, rng.randint(2, 9), rng.randint(1, LARGE + 30)


LARGE = 100  # seeds from here on: logits of a few hundred, whose exp overflows
# temperature of each row, vocabulary, seed
RACES: list[tuple[tuple[float, ...], int, int]] = [
    ((0.0,), 3, 1),
    ((1.0,), 3, 2),
    ((0.5,), 4, 3),
    ((0.0, 1.0), 5, 4),
    ((2.0, 0.0, 0.7), 6, 5),
    ((0.0, 0.7, 30.0) * 5, 300, 6),
    *draw(_draw_race),
]


def _race_tensors(temperatures: tuple[float, ...], vocab: int, seed: int) -> tuple[Tensor, ...]:
    """Draw logits, temperatures and noise; each row's winner rings so early that no rounding changes it."""
    generator = torch.Generator().manual_seed(seed)
    logits = (200 if seed >= LARGE else 2) * torch.randn(len(temperatures), vocab, generator=generator)
    noise = torch.empty_like(logits).exponential_(generator=generator)
    temperature = torch.tensor(temperatures)
    winner = solution("11.2", torch=torch)(logits, temperature, noise)[:, None]
    return logits, temperature, noise.scatter(1, winner, 0.9 * noise.gather(1, winner))


CHOICE_MISTAKES = {
    "all rows are greedy": {"is_drawn, (": "is_drawn & False, ("},
    "rows with temperature 0 are not drawn": {"logits.argmax": "(probs / noise).argmax"},
    "the last to ring wins: a clock rings at noise / p": {"noise).argmax": "noise).argmin"},
    "p x noise is not a race: a clock rings at noise / p": {"probs / noise": "probs * noise"},
    "that is the earliest noise, whatever p is": {"(probs / noise).argmax": "noise.argmin"},
    "the temperature is not used": {"is_drawn, temperature, 1.0": "is_drawn, 1.0, 1.0"},
    "logits are divided by the temperature, not multiplied": {"logits / ": "logits * "},
    "clocks ring at the rates p, not at the logits": {"probs / noise": "logits / noise"},
    "to logits / temperature one adds -log(noise), Gumbel noise": {
        "torch.softmax": "torch.add",
        ", dim=-1)\n    return": ", noise)\n    return",
        "probs / noise": "probs",
    },
    "greedy and drawn rows are swapped": {"is_drawn, (": "~is_drawn, ("},
}
CHOICES = Comparison(
    RACES,
    as_solved("11.2", CHOICE_MISTAKES, explain_tensor, _on(_race_tensors), torch=torch),
    lambda temperatures, vocab, seed: f"temperature {list(temperatures)}, {count(vocab, 'token')}, seed {seed}",
    call=_without_reads(_race_tensors, "logits", "temperature", "noise"),
)


@exercise("11.2", CHOICES)
def own_choice(answer: Callable[..., Tensor]) -> None:
    CHOICES(answer)
    _require_capture(answer, _race_tensors((2.0, 0.0, 0.7), 6, 5))


# 11.4

UNTOUCHED = -7  # what the buffer holds before
LIST, NOT_WHOLE = "a list", ("float64", "float32", "float16", "complex64")
WHOLE = (LIST, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
LIMITS = np.iinfo(np.int32)

IdCase = tuple[list[list[int]], list[str], int]  # ids of each prompt, what each prompt is made, room of the buffer


def _draw_ids(rng: Random) -> IdCase:
    made = [rng.choice(WHOLE)] * rng.randint(1, 4)
    made = [rng.choice(WHOLE) for _ in made] if rng.random() < 0.5 else made
    prompts = [[rng.randint(0, _largest(kind)) for _ in range(rng.randint(1, 5))] for kind in made]
    return prompts, made, sum(map(len, prompts)) + rng.choice((0, 1, 5))


def _largest(kind: str) -> int:
    return 40_000 if kind == LIST else min(40_000, int(np.iinfo(kind).max))


def _draw_refused(rng: Random) -> IdCase:
    prompts, made, _ = _draw_ids(rng)
    total, at = sum(map(len, prompts)), rng.randrange(len(prompts))
    why = rng.choice(("room", "float", "large", "small", "wraps"))
    if why == "room":
        return prompts, made, total - 1
    if why == "float":
        made[at] = rng.choice(NOT_WHOLE)
        return prompts, made, total + 2
    prompts[at][rng.randrange(len(prompts[at]))], made[at] = {
        "large": (LIMITS.max + rng.randint(1, 9), rng.choice((LIST, "int64", "uint32"))),
        "small": (LIMITS.min - rng.randint(1, 9), rng.choice((LIST, "int64"))),
        "wraps": (2**64 - rng.randint(1, 9), "uint64"),  # as int64 these are -1 to -9
    }[why]
    return prompts, made, total + 2


PROMPTS: list[IdCase] = [
    ([[5]], [LIST], 1),
    ([[5, 6], [7]], ["int64", "int64"], 4),
    ([[1], [2]], ["int32", "int32"], 2),
    ([[4, 4]], ["int64"], 2),
    ([[LIMITS.max, LIMITS.min]], ["int64"], 2),
    ([[LIMITS.min], [LIMITS.max]], [LIST, "int32"], 3),
    *draw(_draw_ids),
]
REFUSED: list[IdCase] = [
    ([[5]], [LIST], 0),  # to no slot at all, NumPy writes one number without an error
    ([[5, 6]], [LIST], 1),
    *(([[5]], [kind], 3) for kind in NOT_WHOLE),
    ([[5], [6]], ["int32", "float64"], 3),
    ([[2**31]], ["int64"], 2),
    ([[-(2**31) - 1]], ["int64"], 2),
    ([[2**32 + 5]], ["int64"], 2),
    ([[2**64 - 5]], ["uint64"], 2),
    *draw(_draw_refused),
]


def _made(prompts: list[list[int]], made: list[str]) -> list[Any]:
    return [ids if kind == LIST else np.array(ids, kind) for ids, kind in zip(prompts, made, strict=True)]


def _describe_ids(prompts: list[list[int]], made: list[str], room: int) -> str:
    kinds = made[0] if len(set(made)) == 1 else ", ".join(made)
    return f"prompts {prompts} as {kinds}, a buffer of {room}"


def _judge_ids(answer: Callable[..., Any], prompts: list[list[int]], made: list[str], room: int) -> None:
    buffer, handed = np.full(room, UNTOUCHED, dtype=np.int32), _made(prompts, made)
    want = sum(prompts, [])
    got = answer(handed, buffer)
    if not isinstance(got, np.ndarray):
        missing = ": is a `return` missing?" if got is None else ""
        raise Wrong(f"expected a NumPy array, got {type(got).__name__}{missing}")
    if got.dtype != np.int32:
        raise Wrong(f"dtype {got.dtype}, expected int32")
    if got.shape != (len(want),):
        raise Wrong(f"shape {got.shape}, expected ({len(want)},): the slice with the ids")
    if not np.shares_memory(got, buffer):
        raise Wrong("you return a new array, expected a slice of the buffer: a step reads the buffer's own memory")
    if got.tolist() != want:
        raise Wrong(f"you return {got.tolist()}, expected {want}")
    if buffer[: len(want)].tolist() != want:
        raise Wrong("the ids are not at the beginning of the buffer")
    if (buffer[len(want) :] != UNTOUCHED).any():
        raise Wrong("the buffer has changed after the ids, expected it as before")
    if [list(prompt) for prompt in handed] != prompts:
        raise Wrong("you have changed prompts, expected it as before")


def _judge_refusal(answer: Callable[..., Any], prompts: list[list[int]], made: list[str], room: int) -> None:
    buffer = np.full(room, UNTOUCHED, dtype=np.int32)
    ids = sum(prompts, [])
    try:
        answer(_made(prompts, made), buffer)
    except Exception:
        if (buffer != UNTOUCHED).any():
            raise Wrong(
                "an error is raised after some ids were written, expected it before: check all of them first"
            ) from None
        return
    if len(ids) > room:
        raise Wrong(f"{count(len(ids), 'id')} in {count(room, 'slot')}: nothing was raised, expected an error")
    if kinds := [kind for kind in made if kind in NOT_WHOLE]:
        raise Wrong(f"ids of {kinds[0]} are accepted, expected an error: an np.zeros or a division has made them")
    outside = next(i for i in ids if not LIMITS.min <= i <= LIMITS.max)
    cut = (outside + 2**31) % 2**32 - 2**31
    raise Wrong(f"id {outside} does not fit into int32 and is accepted as {cut}, expected an error")


@exercise("11.4")
def own_buffer(answer: Callable[[list[Any], np.ndarray], np.ndarray]) -> None:
    require_all(PROMPTS, partial(_judge_ids, answer), _describe_ids)
    require_all(REFUSED, partial(_judge_refusal, answer), _describe_ids)


# 11.3


@exercise("11.3")
def own_step(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    require_choices(answer, model.device.type)
    require_sampled(answer, model)
    require_thrifty(answer, model)
    require_finite(answer, model)
    require_contract(answer)
