"""Checkers of lesson 11: masks, the exponential race, inputs that stay int32, and a step that chooses well."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from course.contract.broken_promises import count
from roseinfer.generate import decode_step
from roseinfer.graphs import capture
from roseinfer.models import Model
from roseinfer.profiling import host_reads
from roseinfer.sampling import sample
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Call, Comparison, Expected, draw
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor, explain_value
from ..exercises.solutions import solution
from ..exercises.stage_checks import drawn_model, require_tokens
from ..exercises.tensor_checks import require_unchanged
from ..exercises.wrong import Wrong
from .compare_choices import PROMPT_LEN, RowCounter, ready

# 11.1 and 11.2

Given = Callable[..., tuple[Tensor, ...]]  # makes an answer's arguments of a case


def _on(given: Given) -> Call:
    return lambda answer, *case: answer(*given(*case))


def _without_waits(given: Given, *names: str) -> Call:
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
        try:
            capture(lambda: answer(*handed), handed[0].device)
        except RuntimeError as error:  # numpy(), which host_reads does not see
            raise Wrong(f"it can be called, but the host waits: {error}") from error
        return got[0]

    return call


def _draw_masked(rng: Random) -> tuple[int, int, int]:
    return rng.randint(1, 4), rng.choice((3, 8, 31, 32, 33, 40, 64, 70)), rng.randrange(1000)


# rows, vocabulary, seed
MASKED = [(1, 2, 0), (1, 32, 3), (1, 33, 4), (9, 300, 6), *draw(_draw_masked)]


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
    "a 1 allows the token, and a 0 does not": {"bits.bool()": "~bits.bool()"},
    "token j is bit j % 32 of word j // 32": {
        "tokens // 32": "tokens % allowed.shape[1]",
        "tokens % 32": "tokens // allowed.shape[1]",
    },
    "bit 31 is a bit like the others, though it makes its word negative": {"& 1": "& 1 & (tokens % 32 < 31)"},
    "the grammar is missing: a token that is not allowed gets -inf": {
        "torch.where(bits.bool(), penalised, -torch.inf)": "penalised"
    },
    "the presence penalty counts once, however often the token came": {"(counts > 0)": "counts"},
    "the frequency penalty counts every time": {"* counts": "* (counts > 0)"},
    "penalties are subtracted": {"logits - ": "logits + ", " - presence": " + presence"},
}
MASKS = Comparison(
    MASKED,
    as_solved("11.1", MASK_MISTAKES, explain_tensor, _on(_mask_tensors), torch=torch),
    lambda rows, vocab, seed: f"{count(rows, 'row')}, {count(vocab, 'token')}, seed {seed}",
    call=_without_waits(_mask_tensors, "logits", "allowed", "counts", "presence", "frequency"),
)
register("11.1", MASKS)


def _draw_race(rng: Random) -> tuple[tuple[float, ...], int, int]:
    temperatures = tuple(rng.choice((0.0, 0.05, 0.3, 0.7, 1.0, 2.0, 30.0)) for _ in range(rng.randint(1, 5)))
    return temperatures, rng.randint(2, 9), rng.randint(1, LARGE + 30)


LARGE = 100  # seeds from here on: logits of a few hundred, whose exp overflows
# temperature of each row, vocabulary, seed
RACES = [((0.0,), 3, 1), ((1.0,), 3, 2), ((0.0, 0.7, 30.0) * 5, 300, 6), *draw(_draw_race)]


def _race_tensors(temperatures: tuple[float, ...], vocab: int, seed: int) -> tuple[Tensor, ...]:
    """Draw logits, temperatures and noise; each row's winner rings so early that no rounding changes it."""
    generator = torch.Generator().manual_seed(seed)
    logits = (200 if seed >= LARGE else 2) * torch.randn(len(temperatures), vocab, generator=generator)
    noise = torch.empty_like(logits).exponential_(generator=generator)
    temperature = torch.tensor(temperatures)
    winner = solution("11.2", torch=torch)(logits, temperature, noise)[:, None]
    return logits, temperature, noise.scatter(1, winner, 0.9 * noise.gather(1, winner))


CHOICE_MISTAKES = {
    "rows with temperature 0 are not drawn": {"logits.argmax": "(probs / noise).argmax"},
    "the last to ring wins: a clock rings at noise / p": {"noise).argmax": "noise).argmin"},
    "p x noise is not a race: a clock rings at noise / p": {"probs / noise": "probs * noise"},
    "the temperature is not used": {"is_drawn, temperature, 1.0": "is_drawn, 1.0, 1.0"},
    "clocks ring at the rates p, not at the logits": {"probs / noise": "logits / noise"},
}
CHOICES = Comparison(
    RACES,
    as_solved("11.2", CHOICE_MISTAKES, explain_tensor, _on(_race_tensors), torch=torch),
    lambda temperatures, vocab, seed: f"temperature {list(temperatures)}, {count(vocab, 'token')}, seed {seed}",
    call=_without_waits(_race_tensors, "logits", "temperature", "noise"),
)
register("11.2", CHOICES)

# 11.4

UNTOUCHED = -7  # what the buffer holds before
LIST, NOT_WHOLE = "a list", ("float64", "float32", "float16")
WHOLE = (LIST, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
LIMITS = np.iinfo(np.int32)

IdCase = tuple[list[list[int]], list[str], int]  # ids of each prompt, what each prompt is made, room of the buffer


def _draw_ids(rng: Random) -> IdCase:
    made = [rng.choice(WHOLE)] * rng.randint(1, 4)
    made = [rng.choice(WHOLE) for _ in made] if rng.random() < 0.5 else made
    largest = [40_000 if kind == LIST else min(40_000, int(np.iinfo(kind).max)) for kind in made]
    prompts = [[rng.randint(0, most) for _ in range(rng.randint(1, 5))] for most in largest]
    return prompts, made, sum(map(len, prompts)) + rng.choice((0, 1, 5))


def _draw_refused(rng: Random) -> IdCase:
    prompts, made, room = _draw_ids(rng)
    at = rng.randrange(len(prompts))
    why = rng.choice(("room", "float", "large", "small", "wraps"))
    if why == "room":
        return prompts, made, sum(map(len, prompts)) - 1
    if why == "float":
        made[at] = rng.choice(NOT_WHOLE)
        return prompts, made, room
    prompts[at][rng.randrange(len(prompts[at]))], made[at] = {
        "large": (LIMITS.max + rng.randint(1, 9), rng.choice((LIST, "int64", "uint32"))),
        "small": (LIMITS.min - rng.randint(1, 9), rng.choice((LIST, "int64"))),
        "wraps": (2**64 - rng.randint(1, 9), "uint64"),  # as int64 these are -1 to -9
    }[why]
    return prompts, made, room


PROMPTS: list[IdCase] = [
    ([[5]], [LIST], 1),
    ([[5, 6], [7]], ["int64", "int64"], 4),
    ([[LIMITS.min], [LIMITS.max]], [LIST, "int32"], 3),
    ([[5]], [LIST], 0),  # to no slot at all, NumPy writes one number without an error
    *(([[5]], [kind], 3) for kind in NOT_WHOLE),
    ([[5], [6]], ["int32", "float64"], 3),
    *(([[number]], ["int64"], 2) for number in (2**31, -(2**31) - 1, 2**32 + 5)),
    *draw(_draw_ids),
    *draw(_draw_refused),
]


def _describe_ids(prompts: list[list[int]], made: list[str], room: int) -> str:
    kinds = made[0] if len(set(made)) == 1 else ", ".join(made)
    return f"prompts {prompts} as {kinds}, a buffer of {room}"


def _write_with(answer: Callable[..., Any], prompts: list[list[int]], made: list[str], room: int) -> dict[str, Any]:
    """Return the ids of the slice, or the error that was raised, and the buffer after the call."""
    buffer = np.full(room, UNTOUCHED, dtype=np.int32)
    handed = [ids if kind == LIST else np.array(ids, kind) for ids, kind in zip(prompts, made, strict=True)]
    try:
        got = answer(handed, buffer)
    except Exception as error:
        return {"slice": error, "buffer": torch.from_numpy(buffer)}
    if not isinstance(got, np.ndarray) or got.dtype != np.int32:
        kind = f"an array of {got.dtype}" if isinstance(got, np.ndarray) else type(got).__name__
        raise Wrong(f"you return {kind}, expected a NumPy array of int32, the slice with the ids")
    if got.ctypes.data != buffer.ctypes.data:
        raise Wrong(
            "you return a new array, expected the beginning of the buffer: a step reads the buffer's own memory"
        )
    if [list(prompt) for prompt in handed] != prompts:
        raise Wrong("you have changed prompts, expected it as before")
    return {"slice": got, "buffer": torch.from_numpy(buffer)}


def _explain_slice(got: Any, want: Any) -> str | None:
    if isinstance(want, Exception):
        return None if isinstance(got, Exception) else f"you return {got.tolist()}, expected an error"
    if isinstance(got, Exception):
        return f"{type(got).__name__}: {got}; expected {want.tolist()}"
    return explain_value(got, want)


ONE_BY_ONE = "    for at, ids in enumerate(arrays):\n        buffer[sum(map(len, arrays[:at])) :][: len(ids)] = ids\n"
SLICE_MISTAKES = {
    "the prompts are longer than the buffer": {"if n > len(buffer):": "if False:"},
    "floats are no ids: an np.zeros or a division has made them": {'ids.dtype.kind not in "iu" or ': ""},
    "an id that does not fit into int32 is cut": {" or ids.min() < limits.min or ids.max() > limits.max": ""},
    "int32 has a smallest number, too": {"ids.min() < limits.min or ": ""},
}
BUFFER_MISTAKES = {
    "some ids are written before the error: check all of them first": {"    for ids in arrays:\n": ONE_BY_ONE},
    "what follows the ids must stay as it was": {"buffer[:n] = ": "buffer[n:] = 0\n    buffer[:n] = "},
}
SOLVED = partial(as_solved_by_name, "11.4", call=_write_with, np=np)
WRITTEN = SOLVED({"slice": SLICE_MISTAKES}, _explain_slice) | SOLVED({"buffer": BUFFER_MISTAKES}, explain_tensor)
register("11.4", Comparison(PROMPTS, WRITTEN, _describe_ids, call=_write_with))

# 11.3

WISHES = {
    "greedy": SamplingParams(),
    "drawn": SamplingParams(temperature=1.0, seed=1),
    "top-k": SamplingParams(temperature=0.8, top_k=5, seed=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.5, seed=3),
    "coldest": SamplingParams(temperature=1e-40, seed=4),
}
REFUSED = "a ValueError"

Choice = tuple[list[str], int, str, int]  # what each row wishes; a row, and what its logits have in them; a seed


def _draw_choice(rng: Random) -> Choice:
    rows = [rng.choice(tuple(WISHES)) for _ in range(rng.randint(1, 5))]
    return rows, rng.randrange(len(rows)), rng.choice(("", "", "NaN", "infinity", "a mask")), rng.randrange(10)


def _logits(rows: list[str], row: int, spoilt: str, seed: int) -> Tensor:
    logits = 3 * torch.randn(len(rows), drawn_model().config.vocab_size, generator=torch.Generator().manual_seed(seed))
    logits[seed % len(rows)] += 1000.0  # each row has a largest logit of its own
    if spoilt == "a mask":
        logits[row, :7] = logits[row, 8:] = -torch.inf
    elif spoilt:
        logits[row, 7] = float(spoilt)
    return logits


def _sampled(rows: list[str], *spoilt: Any) -> list[int] | str:
    """Return what `sample` chooses, which is what stage 10 chooses."""
    try:
        return sample(_logits(rows, *spoilt), [Sequence([0] * (PROMPT_LEN + 1), WISHES[row]) for row in rows])
    except ValueError:
        return REFUSED


def _choose_with(answer: type[Stage], rows: list[str], *spoilt: Any) -> list[int] | str:
    """Return what next_tokens chooses where decode returns the logits of the case."""
    stage = answer(drawn_model(), num_blocks=2 * len(rows))
    seqs = ready(stage, stage.model, [WISHES[row] for row in rows])

    def decode(seqs: list[Sequence]) -> Tensor:
        for seq in seqs:
            seq.num_cached_tokens += 1
        return _logits(rows, *spoilt)

    try:
        with patch.object(stage, "decode", decode):
            return stage.next_tokens(seqs)
    except ValueError:
        return REFUSED


CHOSEN = Comparison(
    draw(_draw_choice, number=80),
    Expected(_sampled),
    lambda rows, row, spoilt, _: f"rows {', '.join(rows)}" + (f", {spoilt} in the logits of row {row}" * bool(spoilt)),
    call=_choose_with,
)


@exercise("11.3", CHOSEN)
def own_step(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    CHOSEN(answer)
    for rows in (["greedy"] * 8, ["greedy"] * 6 + ["drawn", "greedy"], ["greedy", "top-k", "greedy", *["drawn"] * 2]):
        _require_thrifty(answer, model, rows)
    require_contract(answer)


def _require_thrifty(answer: type[Stage], model: Model, rows: list[str]) -> None:
    """Raise Wrong if a step sorts rows without a filter, draws noise for too many rows, or reads more than once.

    A row with a seed may be drawn twice: with the others, and on its own.
    """
    stage = answer(model, num_blocks=2 * len(rows))
    seqs = ready(stage, model, [WISHES[row] for row in rows])
    filtered, drawn = rows.count("top-k"), len(rows) - rows.count("greedy")
    counted = RowCounter(model.config.vocab_size)
    found = host_reads(partial(counted.during, partial(decode_step, stage, seqs)))
    where = f"rows {', '.join(rows)}"
    if found.reads > 1:
        calls = ", ".join(sorted(found.by_call))
        raise Wrong(f"{where}: the host reads {count(found.reads, 'time')} in a step ({calls}), the budget is 1")
    if counted.sorted > filtered:
        raise Wrong(f"{where}: right tokens, but {count(counted.sorted, 'row')} sorted, and {filtered} asked for it")
    if counted.noise > 2 * drawn:
        raise Wrong(f"{where}: right tokens, but noise for {count(counted.noise, 'row')}, and {drawn} drawn")
