"""Request: a prompt and its samples, each a sequence with its text. What LLM keeps of them while the engine runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from roseinfer.engine.metrics import SequenceTimes
from roseinfer.sequence import Logprob, Sequence

from .detokenizer import Detokenizer
from .outputs import CompletionOutput, RequestMetrics, RequestOutput
from .vocabulary import Vocabulary


@dataclass(eq=False, slots=True)
class Sample:
    """One continuation of a prompt. detokenizer: None where there is no tokenizer. times: None until it is added."""

    seq: Sequence
    detokenizer: Detokenizer | None
    vocabulary: Vocabulary | None = None  # for the texts of single tokens, which log-probabilities have
    finish_reason: str | None = field(init=False, default=None)
    stop_reason: str | int | None = field(init=False, default=None)
    times: SequenceTimes | None = field(init=False, default=None)
    num_read: int = field(init=False)  # of the sequence's tokens, those that the text knows

    def __post_init__(self) -> None:
        self.num_read = len(self.seq)

    def read(self) -> int:
        """Make text of the tokens that came, and return how many.

        The sample has ended when the sequence has, or at a stop string.
        """
        seq, before, stop = self.seq, self.num_read, None
        self.num_read = len(seq)
        if self.detokenizer:
            is_stopped = seq.finish_reason == "stop" and not seq.params.include_stop_str_in_output
            end = len(seq) - is_stopped  # a token that ends the sequence is no text
            first = seq.num_prompt_tokens + seq.params.min_tokens  # the first token that may end the text
            for at in range(before, end):
                if stop := self.detokenizer.add(seq.token_ids[at], may_stop=at >= first):
                    self.num_read = at + 1
                    break
            if seq.finish_reason and not stop:
                held_back = self.detokenizer.finish(may_stop=len(seq) > first)
                stop = None if seq.error else held_back
        if stop:
            self.finish_reason, self.stop_reason = "stop", stop
        elif seq.finish_reason:
            self.finish_reason = seq.finish_reason
            if seq.finish_reason == "stop" and seq.last_token_id in seq.params.stop_token_ids:
                self.stop_reason = seq.last_token_id
        return self.num_read - before

    def drop_unread(self) -> None:
        """Forget what came after a stop string: with drafts, a step may have made further tokens, or an error."""
        self.seq.cut(self.num_read)
        if self.times:
            del self.times.steps[self.num_read - self.seq.num_prompt_tokens :]

    def output(self, index: int) -> CompletionOutput:
        """Return its output so far."""
        seq = self.seq
        text, token_ids = self.detokenizer.text if self.detokenizer else "", seq.output_ids
        logprobs = total = None
        if seq.logprobs is not None:
            logprobs = list(seq.logprobs)
            total = sum(at[token_id].logprob for at, token_id in zip(logprobs, token_ids, strict=True))
            decode_tokens(logprobs, self.vocabulary)
        return CompletionOutput(
            index, text, token_ids, total, logprobs, self.finish_reason, self.stop_reason, seq.error
        )


@dataclass(eq=False, slots=True)
class Request:
    """A prompt and its samples.

    prompt: its text, None where it was given as token ids. samples: params.n of them, at least one.
    num_prompt_logprobs: candidates for each token of the prompt, None for no log-probabilities of it.
    """

    request_id: str
    prompt: str | None
    samples: list[Sample]
    num_prompt_logprobs: int | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = field(init=False, default=None)

    @property
    def finished(self) -> bool:
        return all(sample.finish_reason for sample in self.samples)

    @property
    def prompt_ids(self) -> list[int]:
        seq = self.samples[0].seq
        return seq.token_ids[: seq.num_prompt_tokens]

    def output(self) -> RequestOutput:
        """Return the output of all its samples so far."""
        outputs = [sample.output(index) for index, sample in enumerate(self.samples)]
        times = [sample.times for sample in self.samples if sample.times]
        metrics = RequestMetrics.of(times) if times else None
        if self.prompt_logprobs:
            decode_tokens(self.prompt_logprobs[1:], self.samples[0].vocabulary)
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_ids, outputs, self.finished, metrics, self.prompt_logprobs
        )


def decode_tokens(logprobs: Iterable[dict[int, Logprob] | None], vocabulary: Vocabulary | None) -> None:
    """Fill in the texts of the tokens, from the newest ones back to those that have theirs."""
    if vocabulary is None:
        return
    for position in reversed([*logprobs]):
        for token, entry in (position or {}).items():
            if entry.decoded_token is not None:
                return
            entry.decoded_token = vocabulary.text_of(token)
