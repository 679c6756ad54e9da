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
from roseinfer.profiling import HostReads, host_reads
from roseinfer.sampling import exponential_race
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, Expected, draw, require_all
from ..exercises.exercise import exercise
from ..exercises.explain import explain_tensor
from ..exercises.stage_checks import require_tokens
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .choice_checks import require_choices, require_finite, require_sampled, require_thrifty

# 11.1

WORD = 32  # bits


def _draw_masked(rng: Random) -> tuple[int, int, int]:
    return rng.randint(1, 4), rng.choice((3, 8, 31, 32, 33, 40, 64, 70)), rng.randrange(1000)


# rows, vocabulary, seed
MASKED = [(1, 2, 0), (1, 3, 1), (2, 3, 2), (1, 32, 3), (1, 33, 4), (2, 40, 5), *draw(_draw_masked)]
Mask = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _mask_tensors(rows: int, vocab: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw the tensors of a case. All numbers are quarters, so that sums are exact in any order."""
    ints = partial(torch.randint, generator=torch.Generator().manual_seed(seed))
    logits = ints(-40, 40, (rows, vocab)) / 4
    words = -(-vocab // WORD)
    allowed = ints(-(2**31), 2**31, (rows, words)).int() | 1  # token 0 is always allowed
    counts = ints(0, 4, (rows, vocab))
    presence, frequency = (ints(1, 8, (rows,)) / 4 for _ in range(2))
    counts[ints(0, 4, (rows, vocab)) == 0] *= 999  # more than 8 bits hold
    return logits, allowed, counts, presence, frequency


def _bits(allowed: Tensor, vocab: int) -> Tensor:
    tokens = torch.arange(vocab, device=allowed.device)
    return (allowed[:, tokens // WORD] >> (tokens % WORD)) & 1


def _penalised(logits: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    return logits - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def masked_logits(logits: Tensor, allowed: Tensor, counts: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
    penalised = _penalised(logits, counts, presence, frequency)
    return penalised.where(_bits(allowed, logits.shape[1]).bool(), -torch.inf)


def _with_bits(bits: Callable[[Tensor, int], Tensor]) -> Mask:
    """Make a mask that is right except for the bits that allow tokens."""
    return lambda logits, allowed, counts, presence, frequency: _penalised(logits, counts, presence, frequency).where(
        bits(allowed, logits.shape[1]).bool(), -torch.inf
    )


def _with_penalties(penalised: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> Mask:
    """Make a mask that is right except for the penalties."""
    return lambda logits, allowed, counts, presence, frequency: penalised(
        logits, counts, presence[:, None], frequency[:, None]
    ).where(_bits(allowed, logits.shape[1]).bool(), -torch.inf)


def _swapped(allowed: Tensor, vocab: int) -> Tensor:
    tokens, words = torch.arange(vocab), allowed.shape[1]
    return (allowed[:, tokens % words] >> (tokens // words)) & 1


def _highest_first(allowed: Tensor, vocab: int) -> Tensor:
    tokens = torch.arange(vocab)
    return (allowed[:, tokens // WORD] >> (WORD - 1 - tokens % WORD)) & 1


MASK_MISTAKES: dict[str, Mask] = {
    "bit 0 of a word is its lowest bit": _with_bits(_highest_first),
    "a 1 allows the token, and a 0 does not": _with_bits(lambda allowed, vocab: 1 - _bits(allowed, vocab)),
    "token j is bit j % 32 of word j // 32": _with_bits(_swapped),
    "each row has its own words": _with_bits(lambda allowed, vocab: _bits(allowed[:1].expand_as(allowed), vocab)),
    "bit 31 is a bit like the others, though it makes its word negative": _with_bits(
        lambda allowed, vocab: _bits(allowed, vocab) * (torch.arange(vocab) % WORD < WORD - 1)
    ),
    "only the lowest bit of a shifted word belongs to the token": _with_bits(
        lambda allowed, vocab: allowed[:, torch.arange(vocab) // WORD] >> (torch.arange(vocab) % WORD)
    ),
    "the grammar is missing: a token that is not allowed gets -inf": lambda logits, allowed, *given: _penalised(
        logits, *given
    ),
    "a token that is not allowed gets -inf, not 0": lambda logits, allowed, *given: _penalised(logits, *given).where(
        _bits(allowed, logits.shape[1]).bool(), 0.0
    ),
    "the presence penalty counts once, however often the token came": _with_penalties(
        lambda logits, n, presence, frequency: logits - (frequency + presence) * n
    ),
    "the frequency penalty counts every time": _with_penalties(
        lambda logits, n, presence, frequency: logits - (frequency + presence) * (n > 0)
    ),
    "penalties are subtracted": _with_penalties(
        lambda logits, n, presence, frequency: logits + frequency * n + presence * (n > 0)
    ),
    "a token that has not come has no penalty": _with_penalties(
        lambda logits, n, presence, frequency: logits - frequency * n - presence
    ),
    "presence and frequency are swapped": _with_penalties(
        lambda logits, n, presence, frequency: logits - presence * n - frequency * (n > 0)
    ),
    "the penalties are missing": _with_penalties(lambda logits, n, presence, frequency: logits),
}


def _of_mask_case(mask: Mask) -> Callable[..., Tensor]:
    return lambda *case: mask(*_mask_tensors(*case))


def _call_mask(answer: Mask, *case: Any) -> Tensor:
    given, handed, got = _mask_tensors(*case), _mask_tensors(*case), []
    found = host_reads(lambda: got.append(answer(*handed)))
    require_unchanged(given, handed, ("logits", "allowed", "counts", "presence", "frequency"))
    _require_no_read(found)
    return got[0]


def _require_no_read(found: HostReads) -> None:
    if found.reads:
        calls = ", ".join(sorted(found.by_call))
        raise Wrong(f"the host reads {count(found.reads, 'time')} ({calls}), expected 0: on a GPU each read is a wait")


MASKS = Comparison(
    MASKED,
    Expected(
        _of_mask_case(masked_logits),
        {why: _of_mask_case(wrong) for why, wrong in MASK_MISTAKES.items()},
        explain_tensor,
    ),
    lambda rows, vocab, seed: f"{count(rows, 'row')}, {count(vocab, 'token')}, seed {seed}",
    call=_call_mask,
)


@exercise("11.1", MASKS)
def own_mask(answer: Mask) -> None:
    MASKS(answer)
    _require_capture(answer, _mask_tensors(2, 40, 5))


def _require_capture(answer: Callable[..., Tensor], handed: tuple[Tensor, ...]) -> None:
    """Raise Wrong if the host waits for the answer in a way that host_reads does not see, such as numpy()."""
    try:
        capture(lambda: answer(*handed), handed[0].device)
    except RuntimeError as error:
        raise Wrong(f"the result is right, but the host waits: {error}") from error


# 11.2


def _draw_race(rng: Random) -> tuple[tuple[float, ...], int, int]:
    temperatures = tuple(rng.choice((0.0, 0.3, 0.7, 1.0, 2.0)) for _ in range(rng.randint(1, 5)))
    return temperatures, rng.randint(2, 9), rng.randint(1, LARGE + 30)


Choice = Callable[[Tensor, Tensor, Tensor], Tensor]
LARGE = 100  # seeds from here on: logits of a few hundred, whose exp overflows
# temperature of each row, vocabulary, seed
RACES = [((0.0,), 3, 1), ((1.0,), 3, 2), ((0.5,), 4, 3), ((0.0, 1.0), 5, 4), ((2.0, 0.0, 0.7), 6, 5), *draw(_draw_race)]


def _race_tensors(temperatures: tuple[float, ...], vocab: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw logits, temperatures and noise; each row's winner rings so early that no rounding changes it."""
    generator = torch.Generator().manual_seed(seed)
    logits = (200 if seed >= LARGE else 2) * torch.randn(len(temperatures), vocab, generator=generator)
    noise = torch.empty_like(logits).exponential_(generator=generator)
    temperature = torch.tensor(temperatures)
    winner = _race(logits, temperature, noise)[:, None]
    return logits, temperature, noise.scatter(1, winner, 0.9 * noise.gather(1, winner))


def _probs(logits: Tensor, temperature: Tensor) -> Tensor:
    return torch.softmax(logits / torch.where(temperature > 0, temperature, 1.0)[:, None], dim=-1)


def _race(logits: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    return exponential_race(_probs(logits, temperature), noise)


def _drawn_by(choice: Choice) -> Choice:
    """Choose the greedy tokens for greedy rows, and let `choice` choose for the others."""
    return lambda logits, t, noise: torch.where(t > 0, choice(logits, t, noise), logits.argmax(-1))


def _of_case(choice: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *case: choice(*_race_tensors(*case))


def _chosen(*case: Any) -> Tensor:
    return _drawn_by(_race)(*_race_tensors(*case))


def _call_choice(answer: Callable[[Tensor, Tensor, Tensor], Tensor], *case: Any) -> Tensor:
    given, handed, got = _race_tensors(*case), _race_tensors(*case), []
    found = host_reads(lambda: got.append(answer(*handed)))
    require_unchanged(given, handed, ("logits", "temperature", "noise"))
    _require_no_read(found)
    return got[0]


CHOICE_MISTAKES: dict[str, Choice] = {
    "all rows are greedy": lambda logits, t, noise: logits.argmax(-1),
    "rows with temperature 0 are not drawn": _race,
    "the last to ring wins: a clock rings at noise / p": _drawn_by(
        lambda logits, t, n: (_probs(logits, t) / n).argmin(-1)
    ),
    "p x noise is not a race: a clock rings at noise / p": _drawn_by(
        lambda logits, t, n: (_probs(logits, t) * n).argmax(-1)
    ),
    "that is the earliest noise, whatever p is": _drawn_by(lambda logits, t, n: n.argmin(-1)),
    "the temperature is not used": _drawn_by(lambda logits, t, n: (logits.softmax(-1) / n).argmax(-1)),
    "logits are divided by the temperature, not multiplied": _drawn_by(
        lambda logits, t, n: ((logits * t[:, None]).softmax(-1) / n).argmax(-1)
    ),
    "clocks ring at the rates p, not at the logits": _drawn_by(lambda logits, t, n: (logits / n).argmax(-1)),
    "to logits / temperature one adds -log(noise), Gumbel noise": _drawn_by(
        lambda logits, t, n: (logits / torch.where(t > 0, t, 1.0)[:, None] + n).argmax(-1)
    ),
    "greedy and drawn rows are swapped": lambda logits, t, noise: torch.where(
        t > 0, logits.argmax(-1), _race(logits, t, noise)
    ),
}


CHOICES = Comparison(
    RACES,
    Expected(_chosen, {why: _of_case(wrong) for why, wrong in CHOICE_MISTAKES.items()}, explain_tensor),
    lambda temperatures, vocab, seed: f"temperature {list(temperatures)}, {count(vocab, 'token')}, seed {seed}",
    call=_call_choice,
)


@exercise("11.2", CHOICES)
def own_choice(answer: Choice) -> None:
    CHOICES(answer)
    _require_capture(answer, _race_tensors((2.0, 0.0, 0.7), 6, 5))


# 11.4


@exercise("11.4")
def own_buffer(answer: Callable[[list[Any], np.ndarray], np.ndarray]) -> None:
    require_all(PROMPTS, lambda *case: _judge_ids(answer, *case), _describe_ids)
    require_all(REFUSED, lambda *case: _judge_refusal(answer, *case), _describe_ids)


UNTOUCHED = -7  # what the buffer holds before
LIST, NOT_WHOLE = "a list", ("float64", "float32", "float16")
WHOLE = (LIST, "int32", "int64", "uint16")
LIMITS = np.iinfo(np.int32)

IdCase = tuple[list[list[int]], list[str], int]  # ids of each prompt, what each prompt is made, room of the buffer


def _draw_ids(rng: Random) -> IdCase:
    prompts = [[rng.randint(0, 40_000) for _ in range(rng.randint(1, 5))] for _ in range(rng.randint(1, 4))]
    made = [rng.choice(WHOLE)] * len(prompts) if rng.random() < 0.5 else [rng.choice(WHOLE) for _ in prompts]
    return prompts, made, sum(map(len, prompts)) + rng.choice((0, 1, 5))


def _draw_refused(rng: Random) -> IdCase:
    prompts, made, _ = _draw_ids(rng)
    total, at = sum(map(len, prompts)), rng.randrange(len(prompts))
    why = rng.choice(("room", "float", "large", "small", "wraps"))
    if why == "room":
        return prompts, made, total - 1
    if why == "float":
        made[at] = rng.choice(NOT_WHOLE)
        return prompts, made, total + 2
    prompts[at][-1], made[at] = {
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
    ([[5]], ["float64"], 3),
    *(([[5]], [kind], 3) for kind in NOT_WHOLE[1:]),
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


# 11.3


@exercise("11.3")
def own_step(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    require_choices(answer, model.device.type)
    require_sampled(answer, model)
    require_thrifty(answer, model)
    require_finite(answer, model)
    require_contract(answer)
