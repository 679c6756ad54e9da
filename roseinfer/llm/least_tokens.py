"""The least number of tokens that a text can have, from its length alone: one far too long is refused unread."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

Parts = list[dict[str, Any]]

# Normalizers after which a text has as many characters as before or more; and those that compose characters, each of at
# most COMPOSED: no character's canonical decomposition has more.
LENGTHENING = ("NFD", "NFKD", "Lowercase", "Prepend", "ByteLevel")
COMPOSING = ("NFC", "NFKC")
COMPOSED = 4
# Pre-tokenizers that keep all characters, unless they are told to remove what they find.
KEEPING = ("ByteLevel", "Metaspace", "Digits", "Split", "Punctuation")


def most_characters(tokenizer: Tokenizer) -> int | None:
    """Return how many characters of a text one token stands for at most; None where there is no such number.

    There is one where each character becomes a part of some token: a BPE that spells what it does not know in bytes,
    and nothing before it that drops characters. An unknown word in one token, or spaces that a special token swallows,
    may be as long as they like.
    """
    state = json.loads(tokenizer.to_str())
    model, added = state["model"], state["added_tokens"]
    before = parts(state["pre_tokenizer"], "pretokenizers")
    normalizers = parts(state["normalizer"], "normalizers")
    keeps_all = all(
        (
            model["type"] == "BPE" and spells_all(model, before),
            all(one["type"] in KEEPING and one.get("behavior") != "Removed" for one in before),
            all(one["type"] in LENGTHENING + COMPOSING or is_one_to_one(one) for one in normalizers),
            not any(token["lstrip"] or token["rstrip"] for token in added),
        )
    )
    if not keeps_all:
        return None
    contents = [token["content"] for token in added]
    normalized = [tokenizer.normalizer.normalize_str(text) for text in contents] if tokenizer.normalizer else []
    longest = max(map(len, (*model["vocab"], *contents, *normalized)))
    return longest * COMPOSED ** sum(one["type"] in COMPOSING for one in normalizers)


def parts(state: dict[str, Any] | None, several: str) -> Parts:
    """Return the steps of a normalizer or a pre-tokenizer. several: the key under which a sequence has its steps."""
    if state is None:
        return []
    if state["type"] == "Sequence":
        return [part for one in state[several] for part in parts(one, several)]
    return [state]


def spells_all(model: dict[str, Any], before: Parts) -> bool:
    """Whether the vocabulary has all bytes, in the form in which the tokenizer looks for them."""
    if any(part["type"] == "ByteLevel" for part in before):
        return all(letter in model["vocab"] for letter in ByteLevel.alphabet())
    return bool(model["byte_fallback"]) and all(f"<0x{byte:02X}>" in model["vocab"] for byte in range(256))


def is_one_to_one(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer replaces texts by others that are no shorter, such as a space by "▁"."""
    found = normalizer.get("pattern", {}).get("String")
    return normalizer["type"] == "Replace" and found is not None and len(found) <= len(normalizer["content"])
