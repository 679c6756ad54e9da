"""TokenTexts: tokens with their log-probabilities, in the two forms that OpenAI's API has."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from tokenizers import Tokenizer

from .output_stream import Delta

LEAST = -9999.0  # in place of -inf, which JSON has not: as vLLM and OpenAI do


class TokenTexts(dict[int, str]):
    """The text of each token by itself, looked up when first asked for; "token_id:7" where there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str:
        tokenizer = self._tokenizer
        text = tokenizer.decode([token_id], skip_special_tokens=False) if tokenizer else f"token_id:{token_id}"
        self[token_id] = text
        return text

    def of_completion(self, delta: Delta, begin: int) -> dict[str, Any]:
        """begin: characters of the sample's text before this delta."""
        tokens = [self[token_id] for token_id in delta.token_ids]
        positions = list(positions_of(delta))
        return {
            "tokens": tokens,
            "token_logprobs": [at[chosen] for chosen, at in positions],
            "top_logprobs": [{self[other]: value for other, value in at.items()} for _, at in positions],
            "text_offset": list(accumulate(map(len, tokens[:-1]), initial=begin)) if tokens else [],
        }

    def of_chat(self, delta: Delta, num_top: int) -> dict[str, Any]:
        """num_top: likeliest tokens that were asked for; the chosen one may be a further one."""
        content = []
        for chosen, at in positions_of(delta):
            likeliest = sorted(at.items(), key=lambda found: -found[1])[:num_top]
            top = [self._one(token_id, value) for token_id, value in likeliest]
            content.append(self._one(chosen, at[chosen]) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self[token_id]
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "replace"))}


def positions_of(delta: Delta) -> Iterator[tuple[int, dict[int, float]]]:
    """For each new token, its id, and the log-probabilities by id at its place."""
    for token_id, at in zip(delta.token_ids, delta.logprobs or (), strict=True):
        yield token_id, {other: max(found.logprob, LEAST) for other, found in at.items()}
