"""Structured outputs: a grammar that the text of a request follows, as a mask over its logits. By llguidance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from roseinfer.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLMatcher

NOT_INSTALLED = "structured_outputs need llguidance, which is not installed: `pip install 'roseinfer[structured]'`"


class Grammar:
    """Bans each token with which the output could no longer follow the grammar. It walks along the text that it is
    given: a text that goes on costs one token, and any other one is walked from where the two part."""

    field = "structured_outputs"

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher
        self._walked: list[int] = []

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        if not self._walk(output_ids):
            return logits  # after a drafted token that the row before has ruled out: this row is not going to be used
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little")[: len(logits)]).bool().to(logits.device)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        return logits.masked_fill(~allowed, float("-inf"))

    def copy(self) -> Grammar:
        """The same grammar for another sample of the prompt, before its first token."""
        return Grammar(self._matcher.deep_copy())

    def _walk(self, output_ids: list[int]) -> bool:
        """Whether the text follows the grammar. If so, the matcher stands at its end."""
        same = 0
        while same < min(len(self._walked), len(output_ids)) and self._walked[same] == output_ids[same]:
            same += 1
        if same < len(self._walked):
            self._matcher.rollback(len(self._walked) - same)
        walked = self._matcher.try_consume_tokens(output_ids[same:])
        self._walked = output_ids[: same + walked]
        return len(self._walked) == len(output_ids)


class Grammars:
    """Makes grammars for a model's tokenizer. eos_token_ids: of the model, with which a text that is complete ends."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """Raises ValueError without llguidance, and for a model without an end token."""
        try:
            from llguidance import LLTokenizer
        except ModuleNotFoundError as error:
            raise ValueError(NOT_INSTALLED) from error
        if not eos_token_ids:
            raise ValueError("structured_outputs need a model with an end token, and this one has none")
        self._tokenizer = LLTokenizer(tokenizer.to_str(), n_vocab=vocab_size, eos_token=[*eos_token_ids])

    def grammar(self, wanted: StructuredOutputsParams) -> Grammar:
        """Raises ValueError for a schema, a regular expression or a grammar that is not valid."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar_text(wanted), log_level=0)
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())
            raise ValueError(f"structured_outputs cannot be followed: {reason}")
        return Grammar(matcher)


def grammar_text(wanted: StructuredOutputsParams) -> str:
    """What was asked for, as llguidance reads it."""
    from llguidance import LLMatcher

    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(wanted.regex)
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(wanted.grammar)
    if wanted.choice is not None:
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        return LLMatcher.grammar_from_lark(f"start: {texts}")
    schema = {"type": "object"} if wanted.json is None else wanted.json
    return LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": not wanted.disable_any_whitespace})
