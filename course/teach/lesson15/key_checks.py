"""Keys of texts, judged by which of them are equal: in small groups, and among very many. For 15.1."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from random import Random
from typing import Any

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw
from ..exercises.wrong import Wrong

Texts = list[list[int]]

# How the solution's key of a block comes about: the key before it, and the block's own tokens.
KEY = 'sha256(before + array("q", tokens).tobytes()).digest()'
TEXT = "token_ids[: start + block_size]"
KEY_MISTAKES = {  # those that take the fewest texts for the same come first
    "an id beyond 2**24 is not exact as a 32-bit float": {'array("q", tokens)': 'array("f", tokens)'},
    "K and V of a block depend on the text before it: its own tokens are not enough": {KEY: "tuple(tokens)"},
    "the length and the last token are post 004's key: tokens in between may differ": {KEY: "start, tokens[-1]"},
    "a sum or a set forgets the order": {KEY: f"start, sum({TEXT})"},
    "the block before is not all of the text before": {
        KEY: "start > 0, *token_ids[max(0, start - block_size) :][: 2 * block_size]"
    },
    "digits side by side: 1, 23 and 12, 3 become the same": {KEY: f'"".join(map(str, {TEXT}))'},
}


def _draw_texts(rng: Random) -> tuple[Texts, int]:
    """Draw texts with common beginnings, one that is changed in a single place, and the first one again."""
    size = rng.choice((1, 1, 2, 2, 3, 3, 16))
    most = rng.choice((4 * size + 1, 4 * size + 1, 4 * size + 1, 300))
    base = [rng.choice(SOME_IDS) for _ in range(rng.randint(size, most))]
    texts = [base, base[: rng.randint(0, len(base))] + [rng.randint(0, 3) for _ in range(rng.randint(0, 4))]]
    changed = list(base)
    changed[rng.randrange(len(base))] += rng.choice((1, 256, 65_536))
    return [*texts, changed, [*base, 5], base], size


LARGEST_ID = 2**31 - 1
SOME_IDS = (0, 1, 2, 3, 12, 23, 257, 40_000, 65_535, 65_536, 70_000, 2**24 + 1, LARGEST_ID - 65_536)
GROUPS = [
    ([[1, 23], [12, 3]], 2),
    ([[1], [257]], 1),
    ([[257], [1, 1]], 1),  # equal: the bytes that are not 0
    ([[65_537], [1, 1]], 1),
    ([[2**24], [2**24 + 1]], 1),
    ([[1, 2, 7], [2, 1, 7]], 1),
    ([[1, *range(600)], [2, *range(600)]], 16),
    *draw(_draw_texts, 60),
]


def _groups_of(answer: Callable[..., Any], texts: Texts, block_size: int) -> list[list[int]]:
    """Replace each key by a number, counted in the order in which keys come; equal keys have the same one."""
    numbers: dict[Hashable, int] = {}
    groups = []
    for text in texts:
        keys = answer(list(text), block_size)
        if not isinstance(keys, (list, tuple)):
            raise Wrong(f"expected a list of keys, got {keys!r}")
        groups.append([numbers.setdefault(key, len(numbers)) for key in keys])
    return groups


def _explain_groups(got: list[list[int]], want: list[list[int]]) -> str | None:
    """Name the first text with too few or too many keys, or the first two blocks whose keys are mixed up."""
    for t, (mine, right) in enumerate(zip(got, want, strict=True)):
        if len(mine) != len(right):
            return f"text {t} has {len(mine)} keys, expected {len(right)}: one for each full block"
    places = [f"block {i} of text {t}" for t, right in enumerate(want) for i in range(len(right))]
    keys, texts = sum(got, []), sum(want, [])
    for n, (key, text) in enumerate(zip(keys, texts, strict=True)):
        if key != text and key in keys[:n]:
            return f"{places[keys.index(key)]} and {places[n]} have the same key, and the texts up to there differ"
        if key != text:
            return f"{places[texts.index(text)]} and {places[n]} end the same text, and have two keys"
    return None


KEYS = Comparison(
    GROUPS,
    as_solved("15.1", KEY_MISTAKES, _explain_groups, _groups_of),
    lambda texts, block_size: f"block_size={block_size}, {', '.join(f'text {i} {t}' for i, t in enumerate(texts))}",
    _groups_of,
)


def require_keys(answer: Callable[..., Any]) -> None:
    """Raise Wrong unless equal keys are equal texts: in small groups of texts, then among very many."""
    KEYS(answer)
    for block_size in (1, 2):
        _require_apart(answer, block_size)


def _require_apart(answer: Callable[..., Any], block_size: int) -> None:
    """Raise Wrong when two of very many texts have the same key for their last block.

    There are so many that some meet in 32 bits, and that for each base up to about 2**24 two of them are one number in
    it, read from either end.
    """
    rng = Random(0)
    ends = [(rng.randrange(2**24), rng.randrange(2)) for _ in range(80_000)]
    texts = dict.fromkeys([*ends, *((last, first) for first, last in ends)])
    text_of: dict[Hashable, tuple[int, int]] = {}
    for text in texts:
        other = text_of.setdefault(answer(list(text), block_size)[-1], text)
        if other != text:
            raise Wrong(
                f"of {len(texts):,} different texts, {list(other)} and {list(text)} have the same key, with "
                f"block_size={block_size}. Different texts collide when a key has too few bits, or is a sum"
            )
