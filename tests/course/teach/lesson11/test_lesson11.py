"""Lesson 11: wrong batches, races and buffers are told what is wrong; right ones pass, however they are made."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

# 11.1


def penalised(logits, counts, presence, frequency):
    return logits - frequency[:, None] * counts - presence[:, None] * counts.clamp(max=1)


def bits_of(allowed, vocab):
    """A column for every bit of every word, in the order of the tokens."""
    return (allowed[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :vocab].bool()


def by_columns(logits, allowed, *given):
    return penalised(logits, *given).masked_fill(~bits_of(allowed, logits.shape[1]), -torch.inf)


def by_adding(logits, allowed, *given):
    forbidden = torch.zeros_like(logits).masked_fill(~bits_of(allowed, logits.shape[1]), -torch.inf)
    return forbidden + penalised(logits, *given)


def in_place(logits, allowed, counts, presence, frequency):
    logits -= frequency[:, None] * counts + presence[:, None] * (counts > 0)
    return logits.masked_fill_(~bits_of(allowed, logits.shape[1]), -torch.inf)


def under_a_mask(logits, allowed, *given):
    result = penalised(logits, *given)
    result[~bits_of(allowed, logits.shape[1])] = -torch.inf
    return result


def in_numpy(logits, allowed, *given):
    words = np.ascontiguousarray(allowed.numpy()).view(np.uint8)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:, : logits.shape[1]]
    return torch.where(torch.from_numpy(bits).bool(), penalised(logits, *given), -torch.inf)


test_a_wrong_mask_is_refused = wrong_answers(
    "11.1",
    {
        "in place": (in_place, "logits was handed in, and you have changed it"),
        "under a mask": (under_a_mask, "expected 0: on a GPU each read is a wait"),
        "through NumPy": (in_numpy, "the host waits"),
        "one word alone": (
            lambda logits, allowed, *given: by_columns(logits, allowed[:, :1].expand(-1, allowed.shape[1]), *given),
            "expected",
        ),
        "counts in 8 bits": (
            lambda logits, allowed, counts, *rest: by_columns(logits, allowed, counts.to(torch.uint8), *rest),
            "expected",
        ),
        "very small, not -inf": (
            lambda logits, allowed, *given: by_columns(logits, allowed, *given).clamp(min=-1e4),
            "expected",
        ),
        "nothing": (lambda *given: None, "got None"),
    },
)


def by_where(logits, allowed, *given):
    return torch.where(bits_of(allowed, logits.shape[1]), penalised(logits, *given), float("-inf"))


test_another_mask_passes = right_answers("11.1", {"columns of bits": by_columns, "a sum": by_adding, "where": by_where})


# 11.2


def probs_of(logits, temperature):
    return torch.softmax(logits / torch.where(temperature > 0, temperature, 1.0)[:, None], dim=-1)


def drawn_by(choice):
    def answer(logits, temperature, noise):
        return torch.where(temperature > 0, choice(logits, temperature, noise), logits.argmax(-1))

    return answer


right_choice = drawn_by(lambda logits, t, noise: (probs_of(logits, t) / noise).argmax(-1))


def choose_by_item(logits, temperature, noise):
    tokens = [right_choice(logits, temperature, noise)[row].item() for row in range(len(logits))]
    return torch.tensor(tokens)


def choose_by_mask(logits, temperature, noise):
    tokens, is_drawn = logits.argmax(-1), temperature > 0
    tokens[is_drawn] = (probs_of(logits, temperature)[is_drawn] / noise[is_drawn]).argmax(-1)
    return tokens


def choose_by_if(logits, temperature, noise):
    if (temperature > 0).any():
        return right_choice(logits, temperature, noise)
    return logits.argmax(-1)


def choose_in_numpy(logits, temperature, noise):
    drawn = right_choice(logits, temperature, noise).numpy()
    return torch.from_numpy(np.where(temperature.numpy() > 0, drawn, logits.numpy().argmax(-1)))


def choose_through_dlpack(logits, temperature, noise):
    is_drawn = torch.from_numpy(np.from_dlpack(temperature) > 0)
    return torch.where(is_drawn, right_choice(logits, temperature, noise), logits.argmax(-1))


def choose_in_place(logits, temperature, noise):
    logits /= torch.where(temperature > 0, temperature, 1.0)[:, None]
    return right_choice(logits, torch.where(temperature > 0, 1.0, 0.0), noise)


def choose_by_gumbel(logits, temperature, noise):
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    return torch.where(temperature > 0, (scaled - noise.log()).argmax(-1), logits.argmax(-1))


def choose_the_earliest(logits, temperature, noise):
    """In double precision, and by the time that each clock rings."""
    p = probs_of(logits.double(), temperature.double())
    return torch.where(temperature == 0, logits.argmax(-1), (noise.double() / p).argmin(-1))


def choose_row_by_row(logits, temperature, noise):
    rows = []
    for row, t, clocks in zip(logits, temperature, noise, strict=True):
        raced = (torch.softmax(row / t.clamp(min=1e-6), -1) / clocks).argmax()
        rows.append(torch.where(t > 0, raced, row.argmax()))
    return torch.stack(rows)


test_a_wrong_choice_is_refused = wrong_answers(
    "11.2",
    {
        "item": (choose_by_item, "the host reads 1 time (item), expected 0: on a GPU each read is a wait"),
        "a mask": (choose_by_mask, "the host reads 3 times (__getitem__, __setitem__)"),
        "an if": (choose_by_if, "the host reads 1 time (__bool__)"),
        "numpy": (choose_in_numpy, "the result is right, but the host waits"),
        "numpy, by DLPack": (choose_through_dlpack, "the result is right, but the host waits"),
        "tolist": (lambda *a: right_choice(*a).tolist(), "the host reads 1 time (tolist)"),
        "in place": (choose_in_place, "logits was handed in, and you have changed it"),
        "a column": (lambda *a: right_choice(*a)[:, None], "shape (1, 1), expected (1,)"),
        "int32": (lambda *a: right_choice(*a).int(), "dtype int32, expected int64"),
        "over the batch": (
            drawn_by(lambda logits, t, noise: (probs_of(logits, t) / noise).argmax(0)[:1].expand(len(t))),
            "values differ, first at",
        ),
    },
)


test_an_unusual_choice_passes = right_answers(
    "11.2",
    {"Gumbel's noise": choose_by_gumbel, "argmin in fp64": choose_the_earliest, "row by row": choose_row_by_row},
)


# 11.4


def write(prompts, buffer, whole="iu", limits=True, room=True, low=True, first=False, wraps=False, error=ValueError):
    arrays = [np.asarray(prompt) for prompt in prompts]
    n = sum(map(len, arrays))
    if room and n > len(buffer):
        raise error("too long")
    if whole and any(a.dtype.kind not in whole for a in (arrays[:1] if first else arrays)):
        raise error("no whole numbers")
    if wraps:
        arrays = [a.astype(np.int64) for a in arrays]
    if limits and any(a.max() > np.iinfo(np.int32).max for a in arrays):
        raise error("too large")
    if limits and low and any(a.min() < np.iinfo(np.int32).min for a in arrays):
        raise error("too small")
    buffer[:n] = np.concatenate(arrays)[: len(buffer)].astype(np.int32)
    return buffer[:n]


def writing_too(dtype):
    """Takes that type for whole numbers."""

    def write_it(prompts, buffer):
        return write([p.astype(np.int64) if getattr(p, "dtype", None) == dtype else p for p in prompts], buffer)

    return write_it


def write_and_empty(prompts, buffer):
    return write([prompts.pop(0) for _ in range(len(prompts))], buffer)


def write_each_once(prompts, buffer):
    return write([list(dict.fromkeys(np.asarray(prompt).tolist())) for prompt in prompts], buffer)


def write_behind(prompts, buffer):
    out = write(prompts, buffer)
    buffer[len(out) :] = 0
    return out


def write_one_by_one(prompts, buffer):
    if sum(map(len, prompts)) > len(buffer):
        raise ValueError("too long")
    n = 0
    for prompt in prompts:
        buffer[n : n + len(prompt)] = write([prompt], np.empty(len(prompt), np.int32))
        n += len(prompt)
    return buffer[:n]


def write_at_the_end(prompts, buffer):
    n = sum(map(len, prompts))
    if n > len(buffer):
        raise ValueError
    buffer[len(buffer) - n :] = write(prompts, buffer.copy())
    return buffer[len(buffer) - n :]


def write_backwards(prompts, buffer):
    return write(prompts[::-1], buffer)


def write_python_ints(prompts, buffer):
    ids = [i.item() if isinstance(i, np.generic) else i for prompt in prompts for i in prompt]
    if len(ids) > len(buffer) or not all(isinstance(i, int) and -(2**31) <= i < 2**31 for i in ids):
        raise ValueError("ids")
    for at, i in enumerate(ids):
        buffer[at] = i
    return buffer[: len(ids)]


def write_through_int64(prompts, buffer):
    ids = np.concatenate([np.asarray(p).astype(np.int64, casting="safe") for p in prompts])
    piece = buffer[: len(ids)]
    if len(piece) < len(ids) or (ids != ids.astype(np.int32)).any():
        raise OverflowError("ids")
    np.copyto(piece, ids, casting="same_kind")
    return piece


def write_by_torch(prompts, buffer):
    parts = [torch.as_tensor(np.asarray(p).astype(np.int64, casting="safe")) for p in prompts]
    ids = torch.cat(parts)
    if len(ids) > len(buffer) or not torch.equal(ids.int().long(), ids):
        raise ValueError("ids")
    torch.from_numpy(buffer)[: len(ids)] = ids.int()
    return buffer[: len(ids)]


test_a_wrong_buffer_is_refused = wrong_answers(
    "11.4",
    {
        "a new array": (
            lambda p, b: write(p, b).copy(),
            "you return a new array, expected a slice of the buffer: a step reads the buffer's own memory",
        ),
        "int64": (lambda p, b: write(p, b).astype(np.int64), "dtype int64, expected int32"),
        "float64 from zeros": (
            lambda p, b: np.concatenate((write(p, b), np.zeros(0))),
            "dtype float64, expected int32",
        ),
        "the whole buffer": (lambda p, b: (write(p, b), b)[1], "expected (3,): the slice with the ids"),
        "nothing returned": (lambda p, b: (write(p, b), None)[1], "got NoneType: is a `return` missing?"),
        "a list": (lambda p, b: write(p, b).tolist(), "expected a NumPy array, got list"),
        "written behind the ids": (write_behind, "the buffer has changed after the ids"),
        "at the end": (write_at_the_end, "the ids are not at the beginning of the buffer"),
        "backwards": (write_backwards, "expected [1, 2]"),
        "no check of the room": (partial(write, room=False), "1 id in 0 slots: nothing was raised, expected an error"),
        "floats taken": (partial(write, whole=""), "ids of float64 are accepted"),
        "no lower limit": (partial(write, low=False), "id -2147483649 does not fit into int32 and is accepted"),
        "float32 taken": (writing_too(np.float32), "ids of float32 are accepted"),
        "float16 taken": (writing_too(np.float16), "ids of float16 are accepted"),
        "prompts emptied": (write_and_empty, "you have changed prompts"),
        "each id once": (write_each_once, "shape (1,), expected (2,)"),
        "only the first prompt's type": (partial(write, first=True), "[[5], [6]] as int32, float64"),
        "uint64 that wraps": (partial(write, wraps=True), "does not fit into int32 and is accepted as -"),
        "limits not checked": (
            partial(write, limits=False),
            "does not fit into int32 and is accepted as -",
        ),
        "written before all are checked": (
            write_one_by_one,
            "after some ids were written, expected it before: check all of them first",
        ),
    },
)


test_an_unusual_buffer_passes = right_answers(
    "11.4",
    {
        "Python's ints": write_python_ints,
        "there and back": write_through_int64,
        "torch": write_by_torch,
        "assertions": partial(write, error=AssertionError),
        "an error of another kind": partial(write, error=RuntimeError),
    },
)
