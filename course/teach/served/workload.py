"""The 24 requests that every lesson ends with: one document, 24 openings of its paragraphs, and when they arrive."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from random import Random
from typing import Any

from roseinfer.arrivals import Arrival
from roseinfer.bench.workload import Work
from roseinfer.documentation import topics
from roseinfer.models import load_tokenizer

SPEC, END = "tiny", 0  # the model, and its end token
ARTICLE, PARAGRAPH_LENS, DOCUMENT_LEN = 21, range(24, 91), 260  # of the documentation; lengths in tokens
OPENINGS = (4, 6, 8, 12, 16)  # tokens of a paragraph that a request ends with
NUM_REQUESTS, MAX_TOKENS, PER_SECOND = 24, 96, 250.0
# The pool has room for 12 of the longest texts that share nothing.
SIZES: dict[str, Any] = {"num_blocks": 288, "block_size": 16, "max_num_seqs": 32}
# Exact facts, whatever the stage: tokens of all prompts, and of all answers.
TOKENS_IN, TOKENS_OUT = 6390, 684


@cache
def requests() -> Work:
    """Make the requests, in order of arrival: the document, and then the first tokens of one of its paragraphs.

    The model goes on with the paragraph, often as the document has it, until the end token or MAX_TOKENS. Two
    paragraphs begin alike, so two requests are equal.
    """
    document: list[int] = []
    paragraphs = []
    for paragraph in _paragraphs():
        if len(document) + len(paragraph) > DOCUMENT_LEN:
            break
        document += paragraph
        paragraphs.append(paragraph)
    rng = Random(0)
    prompts = [document + paragraph[:opening] for paragraph in paragraphs for opening in OPENINGS]
    rng.shuffle(prompts)
    seconds = accumulate(rng.expovariate(PER_SECOND) for _ in range(NUM_REQUESTS))
    return [(Arrival(at, len(prompt), MAX_TOKENS), prompt) for at, prompt in zip(seconds, prompts, strict=False)]


def _paragraphs() -> list[list[int]]:
    """Return the article's paragraphs of usual length as token ids, each with the end token that closes it."""
    tokenizer = load_tokenizer(SPEC)
    texts = [" ".join(text.split()) for text in topics()[ARTICLE].split("\n\n")]
    encoded = [tokenizer.encode(text).ids for text in texts]
    return [[*ids, END] for ids in encoded if len(ids) in PARAGRAPH_LENS]
