"""Structured outputs: a grammar that the text of a request follows, as a mask over its logits. By llguidance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from roseinfer.graphs.upload import uploaded
from roseinfer.structured_outputs import StructuredOutputsParams

from .grammar_compile import compile_grammar, reason_of
from .grammar_tokens import GrammarTokens
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

NOT_INSTALLED = "structured_outputs need llguidance, which is not installed: `pip install '.[structured]'`"
MOST_CHARACTERS = 300_000  # for which in_deep_stack has room


class Grammar:
    """Bans each token with which the output could no longer follow the grammar.

    It walks along the text that it is given: a text that goes on costs one token, and any other one is walked from
    where the two part. start: a matcher before the first token, which stays there. ends: tokens with which a complete
    text ends. A call raises ValueError for a text that does not follow the grammar, as after a drafted token that the
    row before has ruled out, and where llguidance gives up.
    """

    field = "structured_outputs"

    def __init__(self, start: LLMatcher, ends: tuple[int, ...]) -> None:
        self._start, self._ends = start, {*ends}
        self._begin()

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        allowed = uploaded(self._allowed(output_ids)[: len(logits)], logits.device)
        return logits.masked_fill(~allowed, float("-inf"))

    def leaves_only(self, output_ids: list[int], tokens: set[int]) -> bool:
        """Whether only tokens of this set may follow the text."""
        try:
            return tokens.issuperset(np.flatnonzero(self._allowed(output_ids)).tolist())
        except ValueError:
            return False  # the call is going to raise it

    def copy(self) -> Grammar:
        """Return a grammar of the same rules, for another sample of the prompt."""
        return Grammar(self._start, tuple(self._ends))

    def _begin(self) -> None:
        self._matcher = self._start.deep_copy()
        self._walked: list[int] = []

    def _allowed(self, output_ids: list[int]) -> np.ndarray:
        """Return for each token of the vocabulary whether it may follow the text."""
        self._walk(output_ids)
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._refuse_error()
        return np.unpackbits(bits, bitorder="little").view(bool)

    def _walk(self, output_ids: list[int]) -> None:
        """Move the matcher to the end of the text."""
        # 1. Back to where this text and the one before part.
        same = 0
        while same < min(len(self._walked), len(output_ids)) and self._walked[same] == output_ids[same]:
            same += 1
        if same < len(self._walked):
            self._matcher.rollback(len(self._walked) - same)
        # 2. On along this one.
        walked = self._matcher.try_consume_tokens(output_ids[same:])
        self._walked = output_ids[: same + walked]
        self._refuse_error()
        # 3. A complete text may go on with end tokens alone, as with ignore_eos. The matcher takes at most one of them.
        left = output_ids[len(self._walked) :]
        if left and not (self._matcher.is_stopped() and self._ends.issuperset(left)):
            raise ValueError("the text does not follow it")

    def _refuse_error(self) -> None:
        """Raise the matcher's error and begin again: it would never leave the error, and another text may be fine."""
        if self._matcher.is_error():
            reason = reason_of(self._matcher)
            self._begin()
            raise ValueError(reason)


class Grammars:
    """Makes grammars for a model's tokenizer. eos_token_ids: the model's, with which a complete text ends."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        """Raise ValueError without llguidance, without an end token, and for a tokenizer of whole words."""
        try:
            from llguidance import LLTokenizer, TokenizerWrapper
        except ModuleNotFoundError as error:
            raise ValueError(NOT_INSTALLED) from error
        if not eos_token_ids:
            raise ValueError("structured_outputs need a model with an end token, and this one has none")
        tokens = GrammarTokens(vocabulary, vocab_size, eos_token_ids[0])
        self._tokenizer = LLTokenizer(TokenizerWrapper(tokens), eos_token=[*eos_token_ids])
        self._ends = eos_token_ids

    def grammar(self, wanted: StructuredOutputsParams) -> Grammar:
        """Return the grammar that a request asks for.

        Raises ValueError for a schema, a regular expression or a grammar that is not valid, that no text follows or
        that is too large.
        """
        text = grammar_text(wanted)
        with named():
            return Grammar(compile_grammar(self._tokenizer, text), self._ends)


@contextmanager
def named() -> Iterator[None]:
    """Let every ValueError begin with the name of the setting that it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"structured_outputs cannot be followed: {error}") from error


@named()
def grammar_text(wanted: StructuredOutputsParams) -> str:
    """Return the grammar that was asked for, as llguidance reads it.

    Raises ValueError for a text that is too long or no UTF-8, and for a schema that is nested too deeply.
    """
    from llguidance import LLMatcher

    if wanted.choice is not None:
        # As one token of the grammar, an automaton: rules would be tried one by one, and 2,000 of them are too many.
        texts = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        texts = texts.replace("\x7f", r"\u007f")  # the only character that JSON may have and llguidance's Lark may not
        return LLMatcher.grammar_from_lark(short_enough("choice", f"start: CHOICE\nCHOICE: {texts}"))
    if wanted.regex is not None:
        return LLMatcher.grammar_from_regex(short_enough("regex", wanted.regex))
    if wanted.grammar is not None:
        return LLMatcher.grammar_from_lark(short_enough("grammar", wanted.grammar))
    schema = short_enough("json", json.dumps({"type": "object"} if wanted.json is None else wanted.json))
    return LLMatcher.grammar_from_json_schema(schema, {"whitespace_flexible": not wanted.disable_any_whitespace})


def short_enough(name: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"{name} has {len(text):,} characters, allowed: at most {MOST_CHARACTERS:,}")
    return text
