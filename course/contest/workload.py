"""Workloads: requests that come all at once. Their lengths are fixed; order and contents are drawn for each run.

So every run has as much work as any other, and no run has a prompt that an entry could have seen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import NamedTuple

from roseinfer.arguments import require_known
from roseinfer.documentation import topics
from roseinfer.models import load_tokenizer

SPEC = "tiny"  # the model of every contest
OPENING = 2  # random tokens that every prompt begins with: no two runs have the same prompt
REPEATED = 8  # tokens of a passage's beginning that a repeating prompt ends with
SHARED = 64  # tokens that all prompts of the kind "shared" begin with


class Request(NamedTuple):
    """A prompt, how many tokens follow it, and its kind: "plain", "shared" (a common beginning) or "repeating"."""

    prompt: list[int]
    max_tokens: int
    kind: str


class Length(NamedTuple):
    kind: str
    prompt_len: int
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    lengths: tuple[Length, ...]

    @property
    def num_tokens(self) -> int:
        """Number of new tokens of all requests."""
        return sum(length.max_tokens for length in self.lengths)

    def draw(self, seed: int) -> list[Request]:
        """Draw the requests of one run, in the order in which they arrive."""
        rng = Random(seed)
        lengths = list(self.lengths)
        rng.shuffle(lengths)
        common = _passage(rng, SHARED)
        return [Request(_prompt(rng, one, common), one.max_tokens, one.kind) for one in lengths]


def _prompt(rng: Random, length: Length, common: list[int]) -> list[int]:
    if length.kind == "shared":
        return common + _passage(rng, length.prompt_len - SHARED)
    if length.kind == "repeating":
        passage = _passage(rng, length.prompt_len - REPEATED)
        return passage + passage[OPENING : OPENING + REPEATED]
    return _passage(rng, length.prompt_len)


def _passage(rng: Random, length: int) -> list[int]:
    """Draw OPENING random tokens, followed by a passage from a random place."""
    ids, vocab_size = documentation()
    start = rng.randrange(len(ids) - length)
    return [*(rng.randrange(vocab_size) for _ in range(OPENING)), *ids[start : start + length - OPENING]]


@cache
def documentation() -> tuple[list[int], int]:
    """Return the token ids of Python's documentation, on which the bundled model was trained, and vocab_size."""
    tokenizer = load_tokenizer(SPEC)
    text = " ".join(" ".join(topics()).split())
    return tokenizer.encode(text).ids, tokenizer.get_vocab_size()


def _lengths(kind: str, prompt_lens: Sequence[int], max_tokens: Sequence[int]) -> tuple[Length, ...]:
    return tuple(Length(kind, p, n) for p, n in zip(prompt_lens, max_tokens, strict=True))


MIXED = Workload(
    "mixed",
    "prompts of many lengths, a third with a common beginning, a third that repeat themselves",
    _lengths("plain", (8, 16, 24, 32, 48, 64, 96, 128), (48, 12, 8, 24, 64, 16, 8, 32))
    + _lengths("shared", (72, 72, 76, 76, 80, 80, 88, 96), (8, 12, 16, 8, 24, 16, 12, 8))
    + _lengths("repeating", (48, 48, 56, 56, 64, 64, 72, 72), (64, 32, 48, 24, 64, 16, 40, 56)),
)
SHORT = Workload(
    "short",
    "long prompts that share nothing, and answers of a few tokens",
    _lengths("plain", (96, 104, 112, 120, 128, 136, 144, 152) * 4, (2, 3, 4, 5) * 8),
)
TURNED = Workload(
    "turned",
    "short prompts with long answers, and longer prompts with short ones",
    _lengths("plain", (8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40), (48, 44, 52, 48, 56, 48) * 2)
    + _lengths("plain", (48, 50, 52, 54, 56, 58, 60, 62, 64, 66, 68, 72), (8, 12, 8, 8, 12, 8) * 2),
)
WORKLOADS = {workload.name: workload for workload in (MIXED, SHORT, TURNED)}


def workload_of(name: str) -> Workload:
    """Return the workload of that name. Raises ValueError for an unknown name."""
    require_known("workload", name, WORKLOADS)
    return WORKLOADS[name]
