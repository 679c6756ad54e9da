"""Keys of texts, judged by which of them are equal: in small groups, and among very many. For 15.1."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from random import Random
from typing import Any

from ..exercises.as_solved import as_solved
from ..exercises.drawn import Comparison, draw
from ..exercises.wrong import Wrong

Texts = list[list[int]]


def _require_apart(answer: Callable[..., Any]) -> None:
    """Raise Wrong when two of very many texts have the same key for their last block: all texts are different."""
    for block_size, texts in _many().items():
        text_of: dict[Hashable, list[int]] = {}
        for text in texts:
            key = answer(list(text), block_size)[-1]
            if (other := text_of.setdefault(key, text)) is not text:
                raise Wrong(
                    f"of {len(texts):,} different texts, {other} and {text} have the same key, with "
                    f"block_size={block_size}. Different texts collide when a key has too few bits, or is a sum"
                )


@cache
def _many() -> dict[int, list[list[int]]]:
    """Make very many different texts by block size, some of which collide when a key has too few bits or is a sum.

    For each base up to 2**24 there are two texts of one block that are one number in it, read from either end. Other
    texts of one block are random, and so many that some meet in 32 bits. Those of two blocks differ in the first.
    """
    places = 4096
    ends = [*range(places), *range(places, places * places + 1, places)]  # their differences: all up to 2**24
    texts = [pair for one in (0, 1) for end in ends for pair in ([one, end], [end, one])]
    texts = list(map(list, dict.fromkeys(map(tuple, texts))))
    rng = Random(0)
    texts += [[2 + rng.randrange(LARGEST_ID - 1), rng.randint(0, LARGEST_ID)] for _ in range(2**17)]
    return {2: texts, 1: [[first, 7] for first in rng.sample(range(LARGEST_ID), 2**16)]}


LARGEST_ID = 2**31 - 1


def _groups_of(answer: Callable[..., Any], texts: Texts, block_size: int) -> list[list[int]]:
    """Give equal keys the same number, counted in the order in which they come, and return each block's number."""
    numbers: dict[Hashable, int] = {}
    groups = []
    for text in texts:
        keys, again = (answer(list(text), block_size) for _ in range(2))
        if not isinstance(keys, (list, tuple)):
            raise Wrong(f"keys_of({text}, {block_size}): expected a list of keys, got {keys!r}")
        if len(keys) != len(text) // block_size:
            why = "; a block that is not full has no key" if len(keys) > len(text) // block_size else ""
            raise Wrong(f"keys_of({text}, {block_size}): {len(keys)} keys, expected {len(text) // block_size}{why}")
        if list(keys) != list(again):
            said = f"keys_of({text}, {block_size}) returns different keys on a second call"
            raise Wrong(f"{said}, so no lookup can succeed")
        try:
            groups.append([numbers.setdefault(key, len(numbers)) for key in keys])
        except TypeError as error:
            raise Wrong(f"a key is looked up in a dict, and one of {keys!r} cannot be: {error}") from error
    return groups


def _explain_groups(got: list[list[int]], want: list[list[int]]) -> str | None:
    """Name the first two blocks that share a key and should not, or the other way round."""
    places = [(t, i) for t, groups in enumerate(want) for i in range(len(groups))]
    for n, (t, i) in enumerate(places):
        for u, j in places[:n]:
            one_key, one_text = got[t][i] == got[u][j], want[t][i] == want[u][j]
            if one_key != one_text:
                what = "have the same key, and the texts up to there differ", "end the same text, and have two keys"
                return f"block {j} of text {u} and block {i} of text {t} {what[one_text]}"
    return None


# How the solution's key of a block comes about: the key before it, and the block's own tokens.
KEY = 'sha256(before + array("q", tokens).tobytes()).digest()'
TEXT = "token_ids[: start + block_size]"
KEY_MISTAKES = {  # those that take the fewest texts for the same come first
    "an id beyond 2**24 is not exact as a 32-bit float": {'array("q", tokens)': 'array("f", tokens)'},
    "a token id needs more than two bytes": {'array("q", tokens)': 'array("H", [token % 65_536 for token in tokens])'},
    "K and V of a block depend on the text before it: its own tokens are not enough": {KEY: "tuple(tokens)"},
    "the length and the last token are post 004's key: tokens in between may differ": {KEY: "start, tokens[-1]"},
    "a sum forgets the order": {KEY: f"start, sum({TEXT})"},
    "sorted, or in a set, tokens lose their order": {KEY: f"tuple(sorted({TEXT}))"},
    "the block before is not all of the text before": {
        KEY: "start > 0, *token_ids[max(0, start - block_size) :][: 2 * block_size]"
    },
    "digits side by side: 1, 23 and 12, 3 become the same": {KEY: f'"".join(map(str, {TEXT}))'},
    "the key of a block must not depend on the text after it": {KEY: "start, *token_ids"},
}


def _describe_texts(texts: Texts, block_size: int) -> str:
    return f"block_size={block_size}, " + ", ".join(f"text {i} {text}" for i, text in enumerate(texts))


def _draw_texts(rng: Random) -> tuple[Texts, int]:
    """Draw texts with common beginnings, and one that is changed in a single place."""
    size = rng.choice((1, 1, 2, 2, 3, 3, 16))
    base = [rng.choice(SOME_IDS) for _ in range(rng.randint(size, 4 * size + 1))]
    texts = [base, base[: rng.randint(0, len(base))] + [rng.randint(0, 3) for _ in range(rng.randint(0, 4))]]
    changed = list(base)
    changed[rng.randrange(len(base))] += rng.choice((1, 256, 65_536))
    return [*texts, changed, [*base, 5]], size


def _draw_long(rng: Random) -> tuple[Texts, int]:
    """Draw a text of many blocks, the same text with one token changed somewhere, and a beginning of it."""
    size, base = rng.choice((1, 5, 16, 128)), [rng.choice(SOME_IDS) for _ in range(300)]
    changed = list(base)
    changed[rng.randrange(256)] += 1
    return [base, changed, base[: rng.randint(16, 290)]], size


SOME_IDS = (0, 1, 2, 3, 12, 23, 257, 40_000, 65_535, 65_536, 70_000, 2**24 + 1, LARGEST_ID - 65_536)
GROUPS = [
    ([[1, 2], [2, 1]], 2),
    ([[1, 23], [12, 3]], 2),
    ([[1], [257]], 1),
    ([[1, 4], [2, 3]], 2),
    ([[0], [0, 0]], 1),
    ([[257], [1, 1]], 1),
    ([[65_537], [1, 1]], 1),
    ([[1, 35], [18, 3]], 2),  # equal: hexadecimal digits side by side
    ([[65_536, 5], [0, 5]], 2),
    ([[2**24], [2**24 + 1]], 1),
    ([[0x12345, 6], [0x1234, 0x50006]], 2),
    ([[9, 5, 5, 5, 5, 9], [9, 6, 2, 8, 4, 9]], 6),  # equal: sums, sums of place * id, of place ** 2 * id
    *draw(_draw_texts),
    *draw(_draw_long, 6),
]

KEYS = Comparison(
    GROUPS, as_solved("15.1", KEY_MISTAKES, _explain_groups, _groups_of), _describe_texts, call=_groups_of
)


def require_keys(answer: Callable[..., Any]) -> None:
    """Raise Wrong unless equal keys are equal texts: in small groups of texts, then among very many."""
    KEYS(answer)
    _require_apart(answer)
