"""Write data/held_out.json: text of the bundled model's own kind that it was not trained on.

    python -m tools.held_out

"drawn": texts that the model itself writes at temperature 1, token by token from its own probabilities, each from the
token that ends a paragraph on. They are what its probabilities say, so no other model has a lower perplexity on them,
on average: what rounding adds is its price.
"unseen": docstrings of the packages that the training left out (tools/train_tiny.py), cleaned alike, without any
paragraph that shares SHARED words in a row with the training text.
"""

from __future__ import annotations

import json
import platform
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from roseinfer.models import Model, load_model, load_tokenizer
from roseinfer.paths import DATA
from roseinfer.reference import reference_logits
from tools.train_tiny import EOT, collect, docstrings, prose_paragraphs

FILE = DATA / "held_out.json"
LEFT_OUT = ("distutils", "idlelib", "lib2to3", "tkinter", "turtledemo")
SHARED = 6
DRAWN, LENGTH, SEED = 40, 64, 0  # texts, and their tokens after the first one
UNSEEN, SHORTEST = 40, 15  # paragraphs, and words of each at least


def drawn_texts(model: Model, first: int, number: int, length: int, seed: int) -> list[list[int]]:
    """Draw `number` texts as token ids: `first`, and after it `length` tokens from the model."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for _ in range(number):
        token_ids = [first]
        while len(token_ids) <= length:
            probabilities = reference_logits(model, token_ids)[-1].softmax(-1)
            token_ids.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        texts.append(token_ids)
    return texts


def unseen_paragraphs() -> list[str]:
    """List all paragraphs that were left out, in the order of their files."""
    known = {run for document in collect() for paragraph in document.split("\n") for run in runs(paragraph)}
    found: dict[str, None] = {}
    for paragraph in _left_out():
        own = runs(paragraph)
        if len(paragraph.split()) >= SHORTEST and not own & known:
            found[paragraph] = None
            known |= own
    return list(found)


def runs(paragraph: str) -> set[tuple[str, ...]]:
    """Return every SHARED words in a row, wherever they begin."""
    words = re.findall(r"\w+", paragraph.lower())
    return {tuple(words[i : i + SHARED]) for i in range(len(words) - SHARED + 1)}


def _left_out() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in LEFT_OUT:
        for path in sorted((library / package).rglob("*.py")):
            for page in docstrings(path):
                yield from prose_paragraphs(page)


def held_out() -> dict[str, Any]:
    model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
    paragraphs = unseen_paragraphs()
    return {
        "command": "python -m tools.held_out",
        "python": platform.python_version(),
        "licence": "the unseen paragraphs are CPython's, under the PSF License Version 2",
        "drawn": drawn_texts(model, tokenizer.token_to_id(EOT), DRAWN, LENGTH, SEED),
        "unseen": paragraphs[:: len(paragraphs) // UNSEEN][:UNSEEN],
    }


def main() -> None:
    made = held_out()
    lines = [f'  "{key}": {_lines(value)}' for key, value in made.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE}: {len(made['drawn'])} drawn texts, {len(made['unseen'])} unseen paragraphs")


def _lines(value: Any) -> str:
    """Write JSON with each text of a list on its own line."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(f"    {json.dumps(text)}" for text in value) + "\n  ]"


if __name__ == "__main__":
    main()
