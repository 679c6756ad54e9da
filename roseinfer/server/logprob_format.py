"""TokenTexts: tokens with their log-probabilities, in the two forms that OpenAI's API has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roseinfer.llm.request import Sample
from roseinfer.llm.vocabulary import TokenOffsets, Vocabulary

from .output_stream import Delta

LEAST = -9999.0  # in place of -inf, which JSON has not: as vLLM and OpenAI do


class TokenTexts:
    """Names tokens by their texts, or by "token_id:7" where there is no vocabulary.

    A token may end within a character: its text spells such a byte as \\xf0. A completion has no field for bytes beside
    a token's text, so there the text begins with "bytes:". OpenAI's API does both.
    """

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self._vocabulary = vocabulary

    def offsets(self, sample: Sample, is_echoed: bool = False) -> TokenOffsets | None:
        """Return an object that finds where each of the sample's tokens begins in its text; None without a vocabulary.

        is_echoed: the text, and the tokens, begin with the prompt's.
        """
        if self._vocabulary is None:
            return None
        seq = sample.seq
        prompt_ids = [] if is_echoed else seq.token_ids[: seq.num_prompt_tokens]
        return self._vocabulary.offsets(prompt_ids, seq.params.skip_special_tokens)

    def of_completion(self, delta: Delta, offsets: TokenOffsets | None) -> dict[str, Any]:
        """Return a completion's `logprobs`. The first token of a prompt has null.

        offsets: of the sample, which has taken the tokens before this delta.
        """
        positions = list(positions_of(delta))
        return {
            "tokens": [self._name(chosen) for chosen, _ in positions],
            "token_logprobs": [at.get(chosen) for chosen, at in positions],
            "top_logprobs": [self._by_name(at) or None for _, at in positions],
            "text_offset": [offsets.add(chosen) if offsets else 0 for chosen, _ in positions],
        }

    def of_chat(self, delta: Delta, num_top: int) -> dict[str, Any]:
        """Return a chat's `logprobs`. num_top: how many of the likeliest tokens were asked for."""
        content = []
        for chosen, at in positions_of(delta):
            likeliest = sorted(at.items(), key=lambda found: -found[1])[:num_top]
            top = [self._one(token_id, value) for token_id, value in likeliest]
            content.append(self._one(chosen, at[chosen]) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _by_name(self, at: dict[int, float]) -> dict[str, float]:
        """Return the log-probabilities by name; where several tokens have one name, the first one counts.

        The chosen token comes first, and then the likeliest ones.
        """
        named: dict[str, float] = {}
        for token_id, value in at.items():
            named.setdefault(self._name(token_id), value)
        return named

    def _name(self, token_id: int) -> str:
        text = self._text(token_id)
        is_whole = self._vocabulary is None or text.encode() == self._vocabulary.bytes_of(token_id)
        return text if is_whole else f"bytes:{text}"

    def _text(self, token_id: int) -> str:
        return self._vocabulary.text_of(token_id) if self._vocabulary else f"token_id:{token_id}"

    def _one(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = list(self._vocabulary.bytes_of(token_id)) if self._vocabulary else None
        return {"token": self._text(token_id), "logprob": logprob, "bytes": data}


def positions_of(delta: Delta) -> Iterator[tuple[int, dict[int, float]]]:
    """Yield, for each new token, its id and the log-probabilities by id at its place: none for a prompt's first one."""
    for token_id, at in zip(delta.token_ids, delta.logprobs or (), strict=True):
        yield token_id, {other: max(found.logprob, LEAST) for other, found in (at or {}).items()}
