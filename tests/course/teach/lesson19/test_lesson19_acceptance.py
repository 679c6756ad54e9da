"""19.2, accepted by hand: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from wrong_answers import right_answers, wrong_answers


def changes_draft(draft, chosen):
    tokens = []
    while draft and draft[0] == chosen[len(tokens)]:
        tokens.append(draft.pop(0))
    return [*tokens, chosen[len(tokens)]]


def from_the_end(draft, chosen):
    wrong = [i for i in range(len(draft)) if draft[i] != chosen[i]]
    return chosen[: (wrong[-1] if wrong else len(draft)) + 1]


def one_object(draft, chosen):
    same = accumulate((a is b for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


def by_last_byte(draft, chosen):
    same = accumulate((a % 256 == b % 256 for a, b in zip(draft, chosen, strict=False)), min)
    return chosen[: sum(same) + 1]


test_wrong_rows = wrong_answers(
    "19.2",
    {
        "takes the draft apart": (changes_draft, "which is the caller's: make a copy"),
        "the last wrong one": (from_the_end, "you return [44, 300, 300], expected [44, 300]"),
        "one object": (one_object, "draft=[300], chosen=[300, 5]: you return [300], expected [300, 5]"),
        "the last byte of an id": (by_last_byte, "draft=[44], chosen=[300, 44]: you return [300, 44], expected [300]"),
    },
)


def by_numpy(draft, chosen):
    same = np.array(draft, int) == np.array(chosen[:-1], int)
    return np.array(chosen)[: int(same.cumprod().sum()) + 1]


def recursive(draft, chosen):
    if not draft or draft[0] != chosen[0]:
        return [chosen[0]]
    return [draft[0], *recursive(draft[1:], chosen[1:])]


test_right_rows = right_answers("19.2", {"NumPy": by_numpy, "recursive": recursive})
