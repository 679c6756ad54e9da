"""A request while it runs: its tokens, what it asked for, and how much of it is in the KV cache."""

from __future__ import annotations

import itertools
from collections import abc
from dataclasses import dataclass, field

from roseinfer.arguments import is_integer
from roseinfer.sampling_params import SamplingParams, are_counts

_ids = itertools.count()


@dataclass(slots=True)
class Logprob:
    """Log-probability of a token where another one could have stood, as in vLLM. rank: 1 for the likeliest token.

    decoded_token: its text, in which a byte of a character that several tokens spell is written as \\xf0. None
    until roseinfer.LLM has filled it in, and where there is no tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """One request: token_ids holds the prompt, then every token appended. Raises ValueError for an empty prompt.

    Args:
        token_ids: the prompt, which is copied.
        params: what is asked for.
        priority: of those that wait in an engine, the lower goes first.
        parent: a sequence with the same prompt, to share its cache with.

    Attributes:
        num_cached_tokens: tokens whose K and V are in a cache, which is also the position of the next input token. Only
            a stage or a scheduler changes it.
        num_in_flight: tokens that launched steps compute and that are not cached yet. An engine's runner counts them.
        finish_reason: None while running, then "length", "stop", "abort" or "error".
        error: what went wrong.
        is_own_error: whether its params are the cause, and not the model.
        logprobs: where params ask for them, {token id: Logprob} for each new token, the chosen one first.
        block_keys: of its full blocks in a prefix cache, as far as they were asked for.
        ngrams: where its text goes on after each of its n-grams, as far as they were looked up.
    """

    token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: int = 0
    parent: Sequence | None = field(default=None, repr=False)
    num_prompt_tokens: int = field(init=False)
    num_cached_tokens: int = field(init=False, default=0)
    num_in_flight: int = field(init=False, default=0, repr=False)
    finish_reason: str | None = field(init=False, default=None)
    error: str | None = field(init=False, default=None)
    is_own_error: bool = field(init=False, default=False, repr=False)
    logprobs: list[dict[int, Logprob]] | None = field(init=False, default=None)
    block_keys: list[bytes] = field(init=False, default_factory=list, repr=False)
    ngrams: dict[tuple[int, ...], int] = field(init=False, default_factory=dict, repr=False)
    seq_id: int = field(init=False, default_factory=lambda: next(_ids))

    def __post_init__(self) -> None:
        _require(isinstance(self.params, SamplingParams), "params", self.params, "a SamplingParams")
        _require(is_integer(self.priority), "priority", self.priority, "an integer (the lower goes first)")
        is_list = isinstance(self.token_ids, abc.Sequence) and not isinstance(self.token_ids, str)
        valid = is_list and len(self.token_ids) > 0 and are_counts(self.token_ids)
        how = ": encode a text with a tokenizer" if isinstance(self.token_ids, str) else ""
        _require(valid, "token_ids", self.token_ids, f"a non-empty list of token ids (integers >= 0){how}")
        self.token_ids = list(self.token_ids)
        parent = self.parent
        is_same = parent is None or parent.token_ids[: parent.num_prompt_tokens] == self.token_ids
        _require(is_same, "parent", parent, "a sequence with the same prompt")
        self.num_prompt_tokens = len(self.token_ids)
        self.logprobs = None if self.params.logprobs is None else []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_launched_tokens(self) -> int:
        """Tokens that are cached, or will be when the steps in flight are over: where the next step goes on."""
        return self.num_cached_tokens + self.num_in_flight

    @property
    def last_token_id(self) -> int:
        return self.token_ids[-1]

    @property
    def output_ids(self) -> list[int]:
        """The tokens after the prompt."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def max_len(self) -> int:
        """Tokens it has at the end if nothing stops it before max_tokens."""
        return self.num_prompt_tokens + self.params.most_tokens

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)

    def cut(self, num_tokens: int) -> None:
        """Forget what one step made after the first num_tokens tokens: tokens, and an error."""
        del self.token_ids[num_tokens:]
        if self.logprobs is not None:
            del self.logprobs[num_tokens - self.num_prompt_tokens :]
        self.error, self.is_own_error = None, False


def finish_reason(seq: Sequence, eos_token_ids: tuple[int, ...]) -> str | None:
    """Return why a sequence ends with the token it has now: "stop" or "length"; None when it goes on."""
    token_id, params = seq.token_ids[-1], seq.params
    if token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos):
        return "stop"
    return "length" if len(seq.token_ids) >= seq.max_len else None


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
