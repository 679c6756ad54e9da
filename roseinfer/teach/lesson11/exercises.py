"""Checkers of lesson 11: a flat batch, the exponential race, inputs that stay int32, and a step that chooses well."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from roseinfer.contract.broken_promises import count
from roseinfer.graphs import capture
from roseinfer.models import Model
from roseinfer.profiling import host_reads
from roseinfer.sampling import exponential_race
from roseinfer.stage import Stage

from ..exercises.contract_check import require_contract
from ..exercises.drawn import Comparison, Expected, draw, inputs, require_all
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.stage_checks import require_tokens
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .choice_checks import require_choices, require_finite, require_sampled, require_thrifty

# 11.1


def _draw_step(rng: Random) -> tuple[list[int], list[int]]:
    seqs = range(rng.randint(1, 5))
    return [rng.choice((0, 0, rng.randint(1, 20))) for _ in seqs], [rng.choice((1, rng.randint(2, 9))) for _ in seqs]


# cached tokens of each sequence, new tokens of each
STEPS = [([0], [3]), ([0, 0], [2, 3]), ([4], [1]), ([5, 2, 9], [1, 1, 1]), ([0, 7, 4], [3, 1, 2]), *draw(_draw_step)]


def _starts(cached: list[int], num_new: list[int]) -> list[int]:
    return [0, *accumulate(num_new)]


def _positions(cached: list[int], num_new: list[int]) -> list[int]:
    return [c + i for c, n in zip(cached, num_new, strict=True) for i in range(n)]


def _last_rows(cached: list[int], num_new: list[int]) -> list[int]:
    return [end - 1 for end in accumulate(num_new)]


START_MISTAKES = {
    "the first sequence begins at 0": lambda cached, num_new: list(accumulate(num_new)),
    "the end of the last one belongs to it: B + 1 numbers": lambda cached, num_new: _starts(cached, num_new)[:-1],
    "those are the lengths, not where they begin": lambda cached, num_new: [0, *num_new],
    "tokens that are cached already are not in the batch": lambda cached, num_new: [
        0,
        *accumulate(c + n for c, n in zip(cached, num_new, strict=True)),
    ],
}
POSITION_MISTAKES = {
    "those are the rows of the batch; a position counts in its own sequence": lambda cached, num_new: list(
        range(sum(num_new))
    ),
    "the first new token stands behind the cached ones": lambda cached, num_new: [i for n in num_new for i in range(n)],
    "the first position is 0, not 1": lambda cached, num_new: [p + 1 for p in _positions(cached, num_new)],
    "every token has one, not every sequence": lambda cached, num_new: list(cached),
}
ROW_MISTAKES = {
    "there the next sequence begins": lambda cached, num_new: list(accumulate(num_new)),
    "those are the first rows": lambda cached, num_new: _starts(cached, num_new)[:-1],
    "that counts in each sequence, and rows count through the batch": lambda cached, num_new: [n - 1 for n in num_new],
    "those are positions, not rows of the batch": lambda cached, num_new: [
        c + n - 1 for c, n in zip(cached, num_new, strict=True)
    ],
}


FLAT_BATCH = {
    "query_start": Expected(_starts, START_MISTAKES),
    "positions": Expected(_positions, POSITION_MISTAKES),
    "last_rows": Expected(_last_rows, ROW_MISTAKES),
}
register("11.1", Comparison(STEPS, FLAT_BATCH, inputs("cached", "num_new")))

# 11.2


def _draw_race(rng: Random) -> tuple[tuple[float, ...], int, int]:
    temperatures = tuple(rng.choice((0.0, 0.3, 0.7, 1.0, 2.0)) for _ in range(rng.randint(1, 5)))
    return temperatures, rng.randint(2, 9), rng.randint(1, 99)


Choice = Callable[[Tensor, Tensor, Tensor], Tensor]
# temperature of each row, vocabulary, seed
RACES = [((0.0,), 3, 1), ((1.0,), 3, 2), ((0.5,), 4, 3), ((0.0, 1.0), 5, 4), ((2.0, 0.0, 0.7), 6, 5), *draw(_draw_race)]


def _race_tensors(temperatures: tuple[float, ...], vocab: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each row's winner rings so much earlier than the others that no rounding changes it."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(len(temperatures), vocab, generator=generator)
    noise = torch.empty_like(logits).exponential_(generator=generator)
    temperature = torch.tensor(temperatures)
    winner = _race(logits, temperature, noise)[:, None]
    return logits, temperature, noise.scatter(1, winner, 0.9 * noise.gather(1, winner))


def _probs(logits: Tensor, temperature: Tensor) -> Tensor:
    return torch.softmax(logits / torch.where(temperature > 0, temperature, 1.0)[:, None], dim=-1)


def _race(logits: Tensor, temperature: Tensor, noise: Tensor) -> Tensor:
    return exponential_race(_probs(logits, temperature), noise)


def _drawn_by(choice: Choice) -> Choice:
    """Greedy rows as they are, and `choice` for the others."""
    return lambda logits, t, noise: torch.where(t > 0, choice(logits, t, noise), logits.argmax(-1))


def _of_case(choice: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda *case: choice(*_race_tensors(*case))


def _chosen(*case: Any) -> Tensor:
    return _drawn_by(_race)(*_race_tensors(*case))


def _call_choice(answer: Callable[[Tensor, Tensor, Tensor], Tensor], *case: Any) -> Tensor:
    given, handed, got = _race_tensors(*case), _race_tensors(*case), []
    found = host_reads(lambda: got.append(answer(*handed)))
    require_unchanged(given, handed, ("logits", "temperature", "noise"))
    if found.reads:
        calls = ", ".join(sorted(found.by_call))
        raise Wrong(f"the host reads {count(found.reads, 'time')} ({calls}): on a GPU each read is a wait")
    return got[0]


CHOICE_MISTAKES: dict[str, Choice] = {
    "all rows are greedy": lambda logits, t, noise: logits.argmax(-1),
    "rows with temperature 0 are drawn, too": _race,
    "the last to ring wins: a clock rings at noise / p": _drawn_by(
        lambda logits, t, n: (_probs(logits, t) / n).argmin(-1)
    ),
    "p x noise is no race: a clock rings at noise / p": _drawn_by(
        lambda logits, t, n: (_probs(logits, t) * n).argmax(-1)
    ),
    "that is the earliest noise, whatever p is": _drawn_by(lambda logits, t, n: n.argmin(-1)),
    "the temperature is not used": _drawn_by(lambda logits, t, n: (logits.softmax(-1) / n).argmax(-1)),
    "logits are divided by the temperature, not multiplied": _drawn_by(
        lambda logits, t, n: ((logits * t[:, None]).softmax(-1) / n).argmax(-1)
    ),
    "clocks ring at the rates p, not at the logits": _drawn_by(lambda logits, t, n: (logits / n).argmax(-1)),
    "what is added to logits / temperature is -log(noise), Gumbel's noise": _drawn_by(
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
    handed = _race_tensors((2.0, 0.0, 0.7), 6, 5)
    try:
        capture(lambda: answer(*handed), handed[0].device)  # which sees what host_reads does not, such as numpy()
    except RuntimeError as error:
        raise Wrong(f"the tokens are right, but the host waits: {error}") from error


# 11.3


@exercise("11.3")
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
        raise Wrong(f"shape {got.shape}, expected ({len(want)},): the piece that the ids take")
    if not np.shares_memory(got, buffer):
        raise Wrong(
            "that is a new array: a step reads the buffer's own memory, so write there and return a slice of it"
        )
    if got.tolist() != want:
        raise Wrong(f"you return {got.tolist()}, expected {want}")
    if buffer[: len(want)].tolist() != want:
        raise Wrong("the ids are not at the beginning of the buffer")
    if (buffer[len(want) :] != UNTOUCHED).any():
        raise Wrong("what lies behind the ids was written, too")
    if [list(prompt) for prompt in handed] != prompts:
        raise Wrong("prompts was handed in, and you have changed it")


def _judge_refusal(answer: Callable[..., Any], prompts: list[list[int]], made: list[str], room: int) -> None:
    buffer = np.full(room, UNTOUCHED, dtype=np.int32)
    ids = sum(prompts, [])
    try:
        answer(_made(prompts, made), buffer)
    except Exception:
        if (buffer != UNTOUCHED).any():
            raise Wrong("an error is raised, but some ids are written by then: check all of them first") from None
        return
    if len(ids) > room:
        raise Wrong(f"{count(len(ids), 'id')} in {count(room, 'slot')}, and nothing was raised")
    if kinds := [kind for kind in made if kind in NOT_WHOLE]:
        raise Wrong(f"ids of {kinds[0]} are taken: an np.zeros or a division has made them, and no error says so")
    outside = next(i for i in ids if not LIMITS.min <= i <= LIMITS.max)
    cut = (outside + 2**31) % 2**32 - 2**31
    raise Wrong(f"id {outside} does not fit into int32 and is taken: it comes out as {cut}")


# 11.4


@exercise("11.4")
def own_step(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    require_choices(answer, model.device.type)
    require_sampled(answer, model)
    require_thrifty(answer, model)
    require_finite(answer, model)
    require_contract(answer)
