"""real_price: what fewer bits do to the bundled real model: its perplexity on docstrings, and its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp
from statistics import mean
from typing import Any

from roseinfer import LLM, SamplingParams
from roseinfer.display.table import Table
from roseinfer.models.weights import weight_bytes
from roseinfer.paths import DATA

from ..measure import freed_memory
from ..measure.progress_bar import progress_bar
from ..views.rows_table import table

NUM_TEXTS = 8  # docstrings: enough tokens to tell 8 bits from 4, few enough to wait for
MOST_NEW_TOKENS = 40


def real_price(kinds: Mapping[str, Mapping[str, Any]], questions: Sequence[str]) -> Table:
    """Load smollm2 once for each kind, and table its bytes, its perplexity and its greedy answers.

    kinds: for each name the arguments of LLM. questions: what each model is asked; a column each. Perplexity: e to the
    mean of -log p over the tokens, but for the first, of docstrings from Python's library.
    """
    texts = json.loads((DATA / "held_out.json").read_text(encoding="utf-8"))["unseen"][:NUM_TEXTS]
    chats = [[{"role": "user", "content": question}] for question in questions]
    greedy = SamplingParams(max_tokens=MOST_NEW_TOKENS, temperature=0)
    rows, num_tokens = [], 0
    with progress_bar("models", len(kinds)) as done:
        for name, settings in kinds.items():
            llm = LLM("smollm2", device="cpu", **settings)
            costs = token_costs(llm, texts)
            num_tokens = len(costs)
            rows.append({"model": name, "a step reads": weight_bytes(llm.engine.model), "perplexity": exp(mean(costs))})
            answers = llm.chat(chats, greedy, use_tqdm=False)
            rows[-1] |= {question: a.outputs[0].text for question, a in zip(questions, answers, strict=True)}
            del llm  # one model at a time is in memory
            freed_memory.give_back()
            done()
    title = f"SmolLM2 on {num_tokens:,} tokens of docstrings, and its answers"
    formats = {"a step reads": "{:,}", "perplexity": "{:.2f}"}
    return table(rows, ["perplexity", *questions], title, formats=formats)


def token_costs(llm: LLM, texts: Sequence[str]) -> list[float]:
    """Return -log p of each token of the texts but their first, in nats."""
    scored = llm.generate(list(texts), SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    return [
        -logprob.logprob
        for each in scored
        for chosen in (each.prompt_logprobs or [])[1:]
        for logprob in (chosen or {}).values()
    ]
