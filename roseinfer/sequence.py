"""A request while it runs: its tokens, what it asked for, and how much of it is in the KV cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from numbers import Real

from roseinfer.arguments import is_integer

_ids = itertools.count()
MOST_SEED = 2**63 - 1
MOST_LOGPROBS = 20  # candidates a position, as in vLLM


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Settings of how a request's tokens are chosen and when it ends, named as in vLLM.

    max_tokens: new tokens at most. temperature: 0, the default here (vLLM's is 1), is greedy. top_k: 0 or -1 keeps all.
    top_p: 1 keeps all. stop_token_ids end the request, and so does the model's own end token unless ignore_eos; the
    token that ended it is kept in the output. seed: the same tokens whatever else is in the batch (None: torch's global
    generator).
    stop: a text, or several, that end the request as soon as one is complete; the output's text ends before it, and its
    tokens are kept. logprobs: report the log-probabilities of that many likeliest tokens and of the chosen one at each
    position, of the model's own distribution, before temperature and filters (None: of none). n: that many samples of
    one prompt, each with a seed of its own where there is one: seed, seed + 1, and so on. All three are for
    roseinfer.LLM, which has a tokenizer and samples by itself.
    Raises ValueError for a value out of range.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _require(is_count(self.max_tokens) and self.max_tokens >= 1, "max_tokens", self.max_tokens, "an integer >= 1")
        is_temperature = is_number(self.temperature) and 0 <= self.temperature < float("inf")
        _require(is_temperature, "temperature", self.temperature, "a number >= 0 (0 is greedy)")
        is_top_k = is_integer(self.top_k) and self.top_k >= -1
        _require(is_top_k, "top_k", self.top_k, "an integer >= 0 (0 keeps all, and so does vLLM's -1)")
        object.__setattr__(self, "top_k", max(self.top_k, 0))
        is_share = is_number(self.top_p) and 0 < self.top_p <= 1
        _require(is_share, "top_p", self.top_p, "a number above 0 and at most 1 (1 keeps all)")
        stops = tuple(self.stop_token_ids) if isinstance(self.stop_token_ids, Iterable) else (None,)
        _require(all(map(is_count, stops)), "stop_token_ids", self.stop_token_ids, "a tuple of token ids")
        object.__setattr__(self, "stop_token_ids", stops)
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        is_seed = self.seed is None or (is_count(self.seed) and self.seed <= MOST_SEED)
        _require(is_seed, "seed", self.seed, f"None or an integer from 0 to {MOST_SEED}")
        _require(isinstance(self.stop, Iterable), "stop", self.stop, "a text or a list of texts")
        texts = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        is_stop = all(isinstance(text, str) and text for text in texts)
        _require(is_stop, "stop", self.stop, "a text or a list of texts, none of them empty")
        object.__setattr__(self, "stop", texts)
        is_number_of = self.logprobs is None or (is_count(self.logprobs) and self.logprobs <= MOST_LOGPROBS)
        _require(is_number_of, "logprobs", self.logprobs, f"None or an integer from 0 to {MOST_LOGPROBS}")
        _require(is_count(self.n) and self.n >= 1, "n", self.n, "an integer >= 1")
        is_drawn = self.n == 1 or self.temperature > 0
        _require(is_drawn, "n", self.n, "1 at temperature=0, where all samples are the same")
        is_last_seed = self.seed is None or self.seed + self.n - 1 <= MOST_SEED
        _require(is_last_seed, "seed", self.seed, f"at most {MOST_SEED + 1 - self.n} for n={self.n} samples")


@dataclass(slots=True, eq=False)
class Sequence:
    """One request: token_ids holds the prompt, then every token appended. Raises ValueError for an empty prompt.

    priority: of those that wait in an engine, the lower goes first. parent: a sequence with the same prompt, to share
    its cache with. num_cached_tokens counts the tokens whose K and V are in a cache; it is also the position of the
    next input token, and only a stage or a scheduler changes it. num_in_flight: tokens that launched steps compute and
    that are not cached yet; an engine's runner counts them. finish_reason is None while running, then "length",
    "stop", "abort" or "error", and error says what went wrong. block_keys: of its full blocks in a prefix cache, as far
    as they were asked for. ngrams: where its text goes on after each of its n-grams, as far as they were looked up.
    logprobs: where params ask for them, {token id: log-probability} for each new token, the chosen one first.
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
    logprobs: list[dict[int, float]] | None = field(init=False, default=None)
    block_keys: list[bytes] = field(init=False, default_factory=list, repr=False)
    ngrams: dict[tuple[int, ...], int] = field(init=False, default_factory=dict, repr=False)
    seq_id: int = field(init=False, default_factory=lambda: next(_ids))

    def __post_init__(self) -> None:
        _require(isinstance(self.params, SamplingParams), "params", self.params, "a SamplingParams")
        _require(is_integer(self.priority), "priority", self.priority, "an integer (the lower goes first)")
        is_list = isinstance(self.token_ids, List) and not isinstance(self.token_ids, str)
        valid = is_list and len(self.token_ids) > 0 and all(map(is_count, self.token_ids))
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
        return self.num_prompt_tokens + self.params.max_tokens

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)

    def cut(self, num_tokens: int) -> None:
        """Forget what one step made after the first num_tokens tokens: tokens, and an error."""
        del self.token_ids[num_tokens:]
        if self.logprobs is not None:
            del self.logprobs[num_tokens - self.num_prompt_tokens :]
        self.error = None


def refuse_stop_strings(params: SamplingParams) -> None:
    """Refuse stop strings, for code that sees token ids alone. Raises ValueError."""
    if params.stop:
        raise ValueError(f"stop={params.stop!r} needs a tokenizer: use roseinfer.LLM, or stop_token_ids")


def refuse_samples(params: SamplingParams) -> None:
    """Refuse several samples, for code that runs single sequences. Raises ValueError."""
    if params.n > 1:
        raise ValueError(f"n={params.n} samples are for roseinfer.LLM: here each is a Sequence of its own")


def finish_reason(seq: Sequence, eos_token_ids: tuple[int, ...]) -> str | None:
    """Why a sequence ends with the token it has now: "stop" or "length"; None when it goes on."""
    token_id, params = seq.token_ids[-1], seq.params
    if token_id in params.stop_token_ids or (token_id in eos_token_ids and not params.ignore_eos):
        return "stop"
    return "length" if len(seq.token_ids) >= seq.num_prompt_tokens + params.max_tokens else None


def is_count(value: object) -> bool:
    return is_integer(value) and value >= 0


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
