"""What the tests of LLM ask for: texts, params; and what they read of the answers."""

from __future__ import annotations

import shutil
from pathlib import Path

from roseinfer.llm.llm import LLM
from roseinfer.models import load_tokenizer
from roseinfer.paths import TINY
from roseinfer.sequence import SamplingParams

TEXTS = ["Return a new", "None", "The optional argument 'display' can be set to 0 to suppress", "If"]
TOKENIZER = load_tokenizer("tiny")
IDS = [TOKENIZER.encode(text).ids for text in TEXTS]
BLOCKS = 24


def params(max_tokens: int = 12, **others) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True, **others})


def texts(outputs: list) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def copied(folder: Path, *without: str) -> Path:
    """The bundled model's files in a folder that may be changed, without some of them."""
    for file in TINY.iterdir():
        if file.is_file() and file.name not in without:
            shutil.copy(file, folder / file.name)
    return folder


def drafting_always(llm: LLM) -> LLM:
    """An LLM that drafts, if it does, in every step, whatever the clock says."""
    if llm.engine.speculation:
        llm.engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
    return llm
