"""Lesson 11: wrong batches, races and buffers are told what is wrong; right ones pass, however they are made."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from stages import OneTable

# 11.1


masked_with = partial(solution, "11.1", torch=torch)
RETURNED = "return torch.where(bits.bool(), penalised, -torch.inf)"


test_a_wrong_mask_is_refused = wrong_answers(
    "11.1",
    {
        "in place": (
            masked_with({"logits - frequency[:, None] * counts -": "logits.sub_(frequency[:, None] * counts) -"}),
            "logits was handed in, and you have changed it",
        ),
        "under a mask": (
            masked_with({RETURNED: "penalised[~bits.bool()] -= torch.inf\n    return penalised"}),
            "the host waits",
        ),
        "through NumPy": (masked_with({"bits.bool()": "torch.from_numpy(bits.numpy() > 0)"}), "the host waits"),
        "counts in 8 bits": (masked_with({"* counts": "* counts.to(torch.uint8)"}), "expected"),
    },
)


def bits_of(allowed, vocab):
    """A column for every bit of every word, in the order of the tokens."""
    return (allowed[:, :, None] >> torch.arange(32) & 1).flatten(1)[:, :vocab].bool()


def by_columns(logits, allowed, counts, presence, frequency):
    penalised = logits - frequency[:, None] * counts - presence[:, None] * counts.clamp(max=1)
    return penalised.masked_fill(~bits_of(allowed, logits.shape[1]), -torch.inf)


def by_adding(logits, allowed, counts, presence, frequency):
    forbidden = torch.zeros_like(logits).masked_fill(~bits_of(allowed, logits.shape[1]), -torch.inf)
    return forbidden + logits - (frequency[:, None] * counts + presence[:, None] * counts.sign())


test_another_mask_passes = right_answers("11.1", {"columns of bits": by_columns, "a sum": by_adding})


# 11.2


choose_with = partial(solution, "11.2", torch=torch, np=np)
choose = choose_with()
RACE, GREEDY = "(probs / noise).argmax(dim=-1)", "logits.argmax(dim=-1)"
A_MASK = f"tokens = {GREEDY}\n    tokens[is_drawn] = {RACE}[is_drawn]\n    return tokens"
AN_IF = f"    if not (temperature > 0).any():\n        return {GREEDY}\n    is_drawn ="


test_a_wrong_choice_is_refused = wrong_answers(
    "11.2",
    {
        "item": (
            lambda *given: torch.tensor([token.item() for token in choose(*given)]),
            "the host waits for a value (item, int, bool, tolist or an if). On a GPU each read is a wait",
        ),
        "a mask": (
            choose_with({f"return torch.where(is_drawn, {RACE}, {GREEDY})": A_MASK}),
            "the size of the result depends on values (an index by a mask)",
        ),
        "an if": (choose_with({"    is_drawn =": AN_IF}), "the host waits for a value"),
        "numpy, by DLPack": (
            choose_with({"temperature > 0": "torch.from_numpy(np.from_dlpack(temperature) > 0)"}),
            "the host waits",
        ),
        "in place": (
            choose_with(
                {"logits / torch.where(is_drawn, temperature, 1.0)[:, None]": "logits.div_(temperature[:, None] + 1)"}
            ),
            "logits was handed in, and you have changed it",
        ),
        "a temperature that is not that cold": (
            choose_with({"torch.where(is_drawn, temperature, 1.0)": "temperature.clamp(min=1e-9)"}),
            "the temperature is not used",
        ),
    },
)


def choose_by_gumbel(logits, temperature, noise):
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    return torch.where(temperature > 0, (scaled - noise.log()).argmax(-1), logits.argmax(-1))


def choose_the_earliest(logits, temperature, noise):
    """In double precision, and by the time that each clock rings."""
    p = torch.softmax(logits.double() / torch.where(temperature > 0, temperature, 1.0).double()[:, None], dim=-1)
    return torch.where(temperature == 0, logits.argmax(-1), (noise.double() / p).argmin(-1))


test_an_unusual_choice_passes = right_answers(
    "11.2", {"Gumbel's noise": choose_by_gumbel, "argmin in fp64": choose_the_earliest}
)


# 11.4


write_with = partial(solution, "11.4", np=np)
KIND, PROMPT = "ids.dtype.kind not in", "np.asarray(prompt)"
WRAPS = """    if any(ids.dtype.kind not in "iu" for ids in arrays):
        raise ValueError
    for ids in [ids.astype(np.int64) for ids in arrays]:
"""


test_a_wrong_buffer_is_refused = wrong_answers(
    "11.4",
    {
        "a new array": (
            write_with({"return buffer[:n]": "return buffer[:n].copy()"}),
            "you return an array of int32, expected the beginning of the buffer: a step reads the buffer's own memory",
        ),
        "a list": (write_with({"return buffer[:n]": "return buffer[:n].tolist()"}), "you return list, expected"),
        "prompts emptied": (write_with({"return": "prompts.clear()\n    return"}), "you have changed prompts"),
        "float16 taken": (write_with({KIND: f"ids.dtype != np.float16 and {KIND}"}), "float16'"),
        "only the first prompt's type": (
            write_with({"ids.dtype.kind": "arrays[0].dtype.kind"}),
            "expected an error: floats are no ids",
        ),
        "floats in a list": (
            write_with({PROMPT: "prompt if isinstance(prompt, np.ndarray) else np.array(prompt, np.int64)"}),
            "expected an error: floats are no ids",
        ),
        "looked at when joined": (  # int64 and uint64 become float64 together
            write_with({"for ids in arrays": "for ids in [np.concatenate(arrays)]"}),
            "fits=True: checking your answer raised ValueError",
        ),
        "uint64 that wraps": (write_with({"    for ids in arrays:\n": WRAPS}), "], expected an error"),
    },
)


def write_python_ints(prompts, buffer):
    ids = [i.item() if isinstance(i, np.generic) else i for prompt in prompts for i in prompt]
    if len(ids) > len(buffer) or not all(isinstance(i, int) and -(2**31) <= i < 2**31 for i in ids):
        raise ValueError("ids")
    for at, i in enumerate(ids):
        buffer[at] = i
    return buffer[: len(ids)]


def write_by_torch(prompts, buffer):
    ids = torch.cat([torch.tensor(np.asarray(prompt).tolist()) for prompt in prompts])
    if ids.is_floating_point() or len(ids) > len(buffer) or not torch.equal(ids.int().long(), ids):
        raise OverflowError("ids")
    torch.from_numpy(buffer)[: len(ids)] = ids.int()
    return buffer[: len(ids)]


test_an_unusual_buffer_passes = right_answers("11.4", {"Python's ints": write_python_ints, "torch": write_by_torch})


# 11.5

piece_with = partial(solution, "11.5")

test_wrong_pieces = wrong_answers(
    "11.5",
    {
        "another name": (piece_with({"def next_tokens(": "def next_token("}), "write next_tokens too"),
        "one row too early": (piece_with({".cumsum(0) - 1": ".cumsum(0) - 2"}), "token 0 is 6, expected 52"),
        "no -1": (
            piece_with({"torch.where(largest.isfinite(), tokens, -1)": "tokens"}),
            "a prompt whose logits are NaN is not refused",
        ),
        "counted after an error": (
            piece_with({"cached_tokens -= 1": "cached_tokens -= 0"}),
            "[3, 12] tokens were cached before it, and [4, 13] count now",
        ),
        "always greedy": (piece_with({"temperature > 0": "temperature > 9"}), "**Tokens of its own choice**"),
        "no filters": (piece_with({"if is_filtered(p)": "if False"}), "**Tokens of its own choice**"),
        "no blocks": (piece_with({"with self.claimed(seqs):": "if seqs:"}), "KeyError"),
        "no step": (OneTable, "expected a subclass of FusedStep, got a subclass of Stage"),
    },
)
test_right_pieces = right_answers(
    "11.5",
    {
        "one prompt at a time": piece_with({"room -= len(seq)\n": "room = -len(group)\n"}),
        "torch.max": piece_with({"logits.max(dim=-1)": "torch.max(logits, dim=-1)"}),
    },
)
