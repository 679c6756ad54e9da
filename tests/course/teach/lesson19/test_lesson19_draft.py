"""19.1, a draft from n-grams: wrong answers are told what is wrong, and other right ways pass."""

from __future__ import annotations

import numpy as np
from wrong_answers import right_answers, wrong_answers

from course.teach.exercises.solutions import solution
from course.teach.lesson19 import exercises
from roseinfer.sequence import Sequence
from stages import Speculative

ngram_draft = solution("19.1")


def as_text(token_ids, num_tokens, longest=4, shortest=2):
    """Ids as text, where 1 is found in 11."""
    text = " ".join(map(str, token_ids))
    for size in range(min(longest, len(token_ids)), shortest - 1, -1):
        last = " ".join(map(str, token_ids[-size:]))
        if (at := text.rfind(last, 0, len(text) - 1)) >= 0:
            return [int(word) for word in text[at + len(last) :].split()][:num_tokens]
    return []


def takes_apart(token_ids, num_tokens, longest=4, shortest=2):
    last = token_ids.pop()
    return ngram_draft([*token_ids, last], num_tokens, longest, shortest)


def last_bytes(token_ids, num_tokens, longest=4, shortest=2):
    """Looks ids up by their last byte."""
    text = bytes(token_id % 256 for token_id in token_ids)
    for size in range(min(longest, len(text)), shortest - 1, -1):
        if (at := text.rfind(text[-size:], 0, len(text) - 1)) >= 0:
            return token_ids[at + size :][:num_tokens]
    return []


def in_a_longer_window(token_ids, num_tokens, longest=4, shortest=2):
    return ngram_draft(token_ids[-256:], num_tokens, longest, shortest)


test_wrong_lookups = wrong_answers(
    "19.1",
    {
        "ids as text": (as_text, "you return [1, 1], expected []"),
        "takes the text apart": (takes_apart, "which is the caller's: make a copy"),
        "the last byte of an id": (
            last_bytes,
            "you return [0, 1], expected []",
        ),
        "256 tokens": (in_a_longer_window, "you return [], expected [5]"),
    },
)


def by_windows(token_ids, num_tokens, longest=4, shortest=2):
    text = np.array(token_ids)
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
        found = np.flatnonzero((windows == text[-size:]).all(axis=1))
        if len(found):
            return text[found[-1] + size :][:num_tokens]
    return text[:0]


def longest_common_ending(token_ids, num_tokens, longest=4, shortest=2):
    """Each place by how many of the last tokens end there; of equals, the last place."""
    best = (0, 0)
    for end in range(1, len(token_ids)):
        size = 0
        while size < min(end, longest) and token_ids[end - 1 - size] == token_ids[-1 - size]:
            size += 1
        best = max(best, (size, end))
    size, end = best
    return [token_ids[i] for i in range(end, min(end + num_tokens, len(token_ids)))] if size >= shortest else []


test_right_lookups = right_answers("19.1", {"windows": by_windows, "the longest common ending": longest_common_ending})


def test_the_stage_drafts_by_the_rule_of_the_exercise():
    texts = [(case[0], case[1]) for case in exercises.TEXTS]
    assert any(ngram_draft(*text) for text in texts)
    for text, num_tokens in texts:
        assert Speculative.draft(None, Sequence(text), num_tokens) == ngram_draft(text, num_tokens)
