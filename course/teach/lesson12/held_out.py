"""held_out_texts: text of the bundled model's kind that it was not trained on."""

from __future__ import annotations

import json

from roseinfer.models import load_tokenizer
from roseinfer.paths import DATA

DRAWN, UNSEEN = "drawn from itself", "unseen docstrings"


def held_out_texts() -> dict[str, list[list[int]]]:
    """Return token ids of texts, by where they are from; each begins with the token that ends a paragraph.

    DRAWN: what the model writes at temperature 1. UNSEEN: docstrings that its training left out. tools/held_out.py
    made both.
    """
    made = json.loads((DATA / "held_out.json").read_text(encoding="utf-8"))
    tokenizer = load_tokenizer("tiny")
    first = made["drawn"][0][0]
    return {DRAWN: made["drawn"], UNSEEN: [[first, *tokenizer.encode(text).ids, first] for text in made["unseen"]]}
