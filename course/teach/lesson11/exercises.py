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

from roseinfer.cli.repository import stages_package
from roseinfer.generate import decode_step
from roseinfer.graphs import capture
from roseinfer.models import Model
from roseinfer.profiling import host_reads
from roseinfer.sampling import exponential_race
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from ..exercises.as_solved import as_solved, as_solved_by_name
from ..exercises.contract_check import require_contract
from ..exercises.drawn import Call, Comparison, draw, inputs
from ..exercises.exercise import exercise, register
from ..exercises.explain import explain_tensor
from ..exercises.piece_check import register_piece
from ..exercises.solutions import solution
from ..exercises.stage_checks import drawn_model, require_tokens
from ..exercises.tensor_checks import on_tensors
from ..exercises.wrong import Refusal, Wrong, value_or_refusal
from .compare_choices import RowCounter, ready

# 11.1 and 11.2


def _without_waits(make: Callable[..., tuple[Tensor, ...]], *names: str) -> Call:
    """Make a call that raises Wrong if an answer changes its arguments, or if the host waits for a value."""
    run = on_tensors(make, *names)

    def call(answer: Callable[..., Tensor], *case: Any) -> Tensor:
        got = run(answer, *case)
        try:
            capture(partial(answer, *make(*case)), torch.device("cpu"))
        except RuntimeError as error:
            raise Wrong(f"it can be called, but the host waits: {error}. On a GPU each read is a wait") from error
        return got

    return call


def _draw_masked(rng: Random) -> tuple[int, int, int]:
    """Draw the number of rows, the size of the vocabulary, and a seed."""
    return rng.randint(1, 4), rng.choice((3, 8, 31, 32, 33, 40, 64, 70)), rng.randrange(20)


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
    "bit 31 is a bit like the others, though it makes its word negative": {"& 1": "& 1 & (tokens % 32 < 31)"},
    "the grammar is missing: a token that is not allowed gets -inf": {
        "torch.where(bits.bool(), penalised, -torch.inf)": "penalised"
    },
    "the presence penalty counts once, however often the token came": {"(counts > 0)": "counts"},
    "the frequency penalty counts every time": {"* counts": "* (counts > 0)"},
    "penalties are subtracted": {"logits - ": "logits + ", " - presence": " + presence"},
}
MASK = _without_waits(_mask_tensors, "logits", "allowed", "counts", "presence", "frequency")
MASKED = as_solved("11.1", MASK_MISTAKES, explain_tensor, MASK, torch=torch)
register("11.1", Comparison([(9, 300, 6), *draw(_draw_masked)], MASKED, inputs("rows", "V", "seed"), MASK))


def _draw_race(rng: Random) -> tuple[tuple[float, ...], int, float, int]:
    """Draw the temperature of each row, the size of the vocabulary, how far logits spread, and a seed."""
    temperatures = tuple(rng.choice((0.0, 1e-12, 0.05, 0.3, 0.7, 1.0, 2.0, 30.0)) for _ in range(rng.randint(1, 5)))
    spread = rng.choice((2, 2, 200, 1e-11))  # with 200 exp overflows; with 1e-11 the smallest temperature counts
    return temperatures, rng.randint(2, 9), spread, rng.randrange(20)


def _race_tensors(temperatures: tuple[float, ...], vocab: int, spread: float, seed: int) -> tuple[Tensor, ...]:
    """Draw logits, temperatures and noise; each row's winner rings so early that no rounding changes it."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(len(temperatures), vocab, generator=generator)
    noise = torch.empty_like(logits).exponential_(generator=generator)
    temperature = torch.tensor(temperatures)
    winner = solution("11.2", torch=torch)(logits, temperature, noise)[:, None]
    return logits, temperature, noise.scatter(1, winner, 0.9 * noise.gather(1, winner))


CHOICE_MISTAKES = {
    "rows with temperature 0 are not drawn": {"logits.argmax": "(probs / noise).argmax"},
    "the last to ring wins: a clock rings at noise / p": {"noise).argmax": "noise).argmin"},
    "the temperature is not used": {"is_drawn, temperature, 1.0": "is_drawn, 1.0, 1.0"},
    "clocks ring at the rates p, not at the logits": {"probs / noise": "logits / noise"},
}
RACES = [((0.0, 0.7, 30.0) * 5, 300, 2, 6), *draw(_draw_race)]
CHOOSE = _without_waits(_race_tensors, "logits", "temperature", "noise")
CHOSEN = as_solved("11.2", CHOICE_MISTAKES, explain_tensor, CHOOSE, torch=torch)
register("11.2", Comparison(RACES, CHOSEN, inputs("temperature", "V", "spread of logits", "seed"), CHOOSE))

# 11.4

LIST = "a list"
KINDS = (LIST, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
TOO_SMALL, TOO_LARGE, WRAPS = -(2**31) - 1, 2**31, 2**64 - 3  # as int64 the last one is -3
UNFIT = [
    (5.5, LIST),
    (5, "float64"),
    (5, "float32"),
    (5, "float16"),
    (TOO_SMALL, LIST),
    (TOO_SMALL, "int64"),
    (WRAPS, "uint64"),
]
UNFIT += [(number, kind) for number in (TOO_LARGE, 2**32 - 1) for kind in (LIST, "int64", "uint32")]


def _draw_ids(rng: Random) -> tuple[list[list[float]], list[str], int, bool]:
    """Draw the ids of prompts, what each prompt is made, the room of the buffer, and whether all is well.

    Else the room is too small, or one id is of a type or a size that does not fit.
    """
    kinds = [rng.choice(KINDS) for _ in range(rng.randint(1, 4))]
    largest = rng.choice((9, 9, 40_000))
    most = {kind: largest if kind == LIST else min(largest, int(np.iinfo(kind).max)) for kind in kinds}
    prompts: list[list[float]] = [[rng.randint(0, most[kind]) for _ in range(rng.randint(1, 5))] for kind in kinds]
    room, trouble, at = sum(map(len, prompts)), rng.choice((None, None, "room", "id")), rng.randrange(len(prompts))
    if trouble == "id":
        prompts[at][rng.randrange(len(prompts[at]))], kinds[at] = rng.choice(UNFIT)
    return prompts, kinds, room - 1 if trouble == "room" else room + rng.choice((0, 1, 5)), trouble is None


def _write_with(
    answer: Callable[..., Any], prompts: list[list[float]], kinds: list[str], room: int, is_well: bool
) -> dict[str, Any]:
    """Return the ids of the slice, or that an error was raised, and the buffer after the call."""
    buffer = np.full(room, -7, dtype=np.int32)
    handed = [ids if kind == LIST else np.array(ids, kind) for ids, kind in zip(prompts, kinds, strict=True)]
    got = value_or_refusal(partial(answer, handed, buffer), not is_well, Exception)
    if isinstance(got, Refusal):
        return {"slice": got, "buffer": buffer}
    if not isinstance(got, np.ndarray) or got.dtype != np.int32 or got.ctypes.data != buffer.ctypes.data:
        kind = f"an array of {got.dtype}" if isinstance(got, np.ndarray) else type(got).__name__
        raise Wrong(f"you return {kind}, expected the beginning of the buffer: a step reads the buffer's own memory")
    if [list(prompt) for prompt in handed] != prompts:
        raise Wrong("you have changed prompts, expected it as before")
    return {"slice": got, "buffer": buffer}


ONE_BY_ONE = "    for at, ids in enumerate(arrays):\n        buffer[sum(map(len, arrays[:at])) :][: len(ids)] = ids\n"
SLICE_MISTAKES = {
    "the prompts are longer than the buffer": {"if n > len(buffer):": "if False:"},
    "floats are no ids: an np.zeros or a division has made them": {'ids.dtype.kind not in "iu" or ': ""},
    "an id that does not fit into int32 is cut": {" or ids.min() < limits.min or ids.max() > limits.max": ""},
}
BUFFER_MISTAKES = {
    "some ids are written before the error: check all of them first": {"    for ids in arrays:\n": ONE_BY_ONE},
    "what follows the ids must stay as it was": {"buffer[:n] = ": "buffer[n:] = 0\n    buffer[:n] = "},
}
WRITTEN = as_solved_by_name("11.4", {"slice": SLICE_MISTAKES, "buffer": BUFFER_MISTAKES}, call=_write_with, np=np)
PROMPTS = [
    ([[-(2**31)], [2**31 - 1]], [LIST, "int64"], 2, True),
    ([[5]], [LIST], 0, False),  # to no slot at all, NumPy writes one number without an error
    *(([[1], [2, number]], [LIST, kind], 3, False) for number, kind in UNFIT),
    *draw(_draw_ids, 120),
]
register("11.4", Comparison(PROMPTS, WRITTEN, inputs("prompts", "made as", "room of the buffer", "fits"), _write_with))

# 11.3

WISHES = {
    "greedy": SamplingParams(),
    "drawn": SamplingParams(temperature=1.0, seed=1),
    "top-k": SamplingParams(temperature=0.8, top_k=5, seed=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.5, seed=3),
    "coldest": SamplingParams(temperature=1e-40, seed=4),
}
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


def _choose_with(answer: type[Stage], rows: list[str], row: int, spoilt: str, seed: int) -> Any:
    """Return what next_tokens chooses where decode returns the logits of the case."""
    stage = answer(drawn_model(), num_blocks=2 * len(rows))
    seqs = ready(stage, stage.model, [WISHES[row] for row in rows])

    def decode(seqs: list[Sequence]) -> Tensor:
        for seq in seqs:
            seq.num_cached_tokens += 1
        return _logits(rows, row, spoilt, seed)

    with patch.object(stage, "decode", decode):
        return value_or_refusal(partial(stage.next_tokens, seqs), is_due=spoilt in ("NaN", "infinity"))


NAMES: dict[str, Any] = {"torch": torch, "partial": partial, "exponential_race": exponential_race}
CHOSEN_ROWS = Comparison(
    draw(_draw_choice, number=80),
    as_solved("11.3", {}, call=_choose_with, FusedStep=stages_package().FusedStep, **NAMES),
    lambda rows, row, spoilt, _: f"rows {', '.join(rows)}" + (f", {spoilt} in the logits of row {row}" * bool(spoilt)),
    call=_choose_with,
)


@exercise("11.3", CHOSEN_ROWS)
def own_step(answer: type[Stage], model: Model) -> None:
    require_tokens(answer, model)
    CHOSEN_ROWS(answer)
    for rows in (["greedy"] * 8, ["greedy"] * 6 + ["drawn", "greedy"], ["greedy", "top-k", "greedy", *["drawn"] * 2]):
        _require_thrifty(answer, model, rows)
    require_contract(answer)


def _require_thrifty(answer: type[Stage], model: Model, rows: list[str]) -> None:
    """Raise Wrong if a step reads more than once, sorts rows without a filter, or draws noise for too many rows."""
    stage = answer(model, num_blocks=2 * len(rows))
    seqs = ready(stage, model, [WISHES[row] for row in rows])
    counted = RowCounter(model.config.vocab_size)
    found = host_reads(partial(counted.during, partial(decode_step, stage, seqs)))
    num_drawn = len(rows) - rows.count("greedy")  # a row with a seed may be drawn twice: with others, and on its own
    for what, got, most in (
        (f"reads of the host ({', '.join(sorted(found.by_call))})", found.reads, 1),
        ("rows sorted", counted.sorted, rows.count("top-k")),
        ("rows of noise", counted.noise, 2 * num_drawn),
    ):
        if got > most:
            raise Wrong(f"rows {', '.join(rows)}: right tokens, but {got} {what} in a step, the budget is {most}")


# 11.5

register_piece("11.5")
