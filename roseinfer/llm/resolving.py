"""Resolver: turns what a request asks for into samples of token ids, which the engine runs without their texts."""

from __future__ import annotations

from dataclasses import replace

from tokenizers import Tokenizer

from roseinfer.arguments import counted
from roseinfer.engine.logit_changes import check_tokens
from roseinfer.models import ModelConfig
from roseinfer.sampling_params import LogitsProcessor, SamplingParams
from roseinfer.sequence import Sequence
from roseinfer.stage import TooLong

from .bad_words import bad_words
from .detokenizer import Detokenizer
from .grammar import Grammar, Grammars
from .request import Sample
from .vocabulary import Vocabulary

NEED_TOKENIZER = {"stop": "stop_token_ids", "bad_words": "logit_bias", "structured_outputs": "logits_processors"}


class Resolver:
    """Turns requests into samples for the engine.

    shape: the model's. longest: tokens of a sequence at most. pool_tokens: how many the KV cache has room for. name:
    the model's, for errors.
    """

    def __init__(
        self, shape: ModelConfig, tokenizer: Tokenizer | None, longest: int, pool_tokens: int, name: str
    ) -> None:
        self.shape, self.tokenizer, self.name = shape, tokenizer, name
        self.longest, self.pool_tokens = longest, pool_tokens
        self.vocabulary = Vocabulary(tokenizer) if tokenizer else None
        self._grammars: Grammars | None = None

    def check(self, params: SamplingParams) -> None:
        """Raise ValueError for params that the model cannot have."""
        check_tokens(params, self.shape.vocab_size)
        for name, instead in NEED_TOKENIZER.items():
            if not self.tokenizer and (value := getattr(params, name)):
                raise ValueError(f"{name}={value!r} needs a tokenizer, and {self.name} has none: use {instead}")

    def fit(self, seq: Sequence) -> None:
        """Give a sequence the max_tokens that there is room for.

        A longer one ends with "length" where the positions of the model end. Raises TooLong for a prompt that leaves no
        room for a token.
        """
        params, room = seq.params, self.longest - len(seq)
        if room < 1:
            raise TooLong(
                f"prompt of {counted(len(seq), 'token')} leaves no room for a new one, allowed: at most "
                f"{self.longest - 1} with max_model_len={self.longest}"
            )
        if params.max_tokens is None:  # the last token is returned, never cached
            room = max(1, min(room, self.pool_tokens + 1 - len(seq)))
        elif params.max_tokens <= room:
            return
        seq.params = replace(params, max_tokens=room, min_tokens=min(params.min_tokens, room))

    def samples(self, seq: Sequence) -> list[Sample]:
        """Make as many samples as the params of `seq` ask for. It is the first; the others share its prompt's cache."""
        params, seqs = seq.params, [seq]
        seqs += [Sequence(seq.token_ids, params, seq.priority, seq) for _ in range(params.n - 1)]
        banned, grammar = self._banned(params), self._grammar(params)
        samples = []
        for index, each in enumerate(seqs):
            functions = [*banned, grammar.copy()] if grammar else banned  # a grammar walks along the text of one sample
            if functions or params.n > 1:
                each.params = replace(
                    params,
                    n=1,
                    seed=None if params.seed is None else params.seed + index,
                    bad_words=(),
                    structured_outputs=None,
                    logits_processors=(*params.logits_processors, *functions),
                )
            samples.append(Sample(each, self._detokenizer(each.token_ids, params), self.vocabulary))
        return samples

    def _banned(self, params: SamplingParams) -> list[LogitsProcessor]:
        if not params.bad_words:
            return []
        assert self.tokenizer, "checked"
        return [bad_words(params.bad_words, self.tokenizer, self.shape.vocab_size)]

    def _grammar(self, params: SamplingParams) -> Grammar | None:
        if not params.structured_outputs:
            return None
        if self._grammars is None:
            assert self.vocabulary, "checked"
            self._grammars = Grammars(self.vocabulary, self.shape.vocab_size, self.shape.eos_token_ids)
        return self._grammars.grammar(params.structured_outputs)

    def _detokenizer(self, token_ids: list[int], params: SamplingParams) -> Detokenizer | None:
        if self.vocabulary is None:
            return None
        return self.vocabulary.detokenizer(
            token_ids, params.stop, params.include_stop_str_in_output, params.skip_special_tokens
        )
