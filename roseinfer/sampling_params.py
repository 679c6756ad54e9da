"""SamplingParams: how the tokens of a request are chosen and when it ends, named as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from .arguments import is_integer, refuse_wrong_arguments
from .structured_outputs import StructuredOutputsParams

LogitsProcessor = Callable[..., Any]  # (output ids, logits [V]) or (prompt ids, output ids, logits [V]) -> logits [V]

MOST_SEED = 2**63 - 1
MOST_LOGPROBS = 20  # candidates a position, as in vLLM
MOST_PENALTY = 2.0  # presence and frequency, as in vLLM and OpenAI's API
MOST_BIAS = 100.0  # larger ones count as this, as in vLLM and OpenAI's API
UNBOUNDED = 2**62  # length of a sequence with max_tokens=None, until LLM has set a limit

# What vLLM's SamplingParams has beyond these fields, and what to use instead.
NOT_TAKEN = {
    "best_of": "use n, and sort the outputs by cumulative_logprob",
    "use_beam_search": "the engine has no beam search",
    "truncate_prompt_tokens": "a prompt is never cut: cut it yourself",
    "detokenize": "texts are always made; LLM(...) without a tokenizer makes none",
    "spaces_between_special_tokens": "special tokens that are shown stand as the tokenizer writes them",
    "output_kind": "generate gives whole outputs, and stream gives all of the text so far",
    "guided_decoding": "use structured_outputs=StructuredOutputsParams(...), vLLM's newer name",
    "extra_args": "it is for plugins of vLLM",
    "flat_logprobs": "logprobs are one dict for each position",
    "skip_clone": "params are never changed, so they are never copied",
    "thinking_token_budget": "the engine does not tell reasoning from other tokens",
    "repetition_detection": "use repetition_penalty, or stop a stream yourself",
}

# Fields that change logits, and the values with which they change nothing.
UNCHANGED: dict[str, Any] = {
    "allowed_token_ids": None,
    "min_tokens": 0,
    "logit_bias": None,
    "bad_words": (),
    "structured_outputs": None,
    "logits_processors": (),
    "repetition_penalty": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "min_p": 0,
}


@refuse_wrong_arguments(NOT_TAKEN)
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Say how a request's tokens are chosen and when it ends, named as in vLLM.

    Args:
        max_tokens: new tokens at most. None: as many as the model has positions for. With roseinfer.LLM a request also
            ends where the model's positions end, with finish_reason "length".
        temperature: 0, the default here (vLLM's is 1), is greedy.
        top_k: choose among that many likeliest tokens; 0 or -1 keeps all.
        top_p: choose among the likeliest tokens that together have that probability; 1 keeps all.
        stop_token_ids: tokens that end the request, beside the model's own end token. They are kept in the output.
        ignore_eos: go on after the model's own end token.
        seed: draw the same tokens whatever else is in the batch. None: from torch's global generator.
        stop: a text, or several. The request ends as soon as one is complete; the output's text ends before it, and its
            tokens are kept.
        logprobs: report the log-probabilities of that many likeliest tokens and of the chosen one at each position, of
            the model's own distribution, before all changes. None: none.
        n: samples of one prompt. With a seed each has its own: seed, seed + 1, and so on.
        min_p: keep tokens whose probability is at least that share of the likeliest one's; 0 keeps all.
        min_tokens: new tokens before which no token and no text ends the request.
        presence_penalty: subtracted from the logits of tokens that the output has.
        frequency_penalty: subtracted for each time that the output has a token.
        repetition_penalty: divides the logits of tokens in the prompt or the output, or multiplies those below 0.
        logit_bias: {token id: added to its logit}, from -100 to 100.
        allowed_token_ids: the only tokens that may be chosen. None: all.
        bad_words: texts that are not written; LLM makes tokens of them.
        logits_processors: functions (output ids, logits [V]) -> logits, or (prompt ids, output ids, logits). What one
            returns may depend on its arguments alone: a token is computed again after a preemption, and tried with
            drafts.
        structured_outputs: a JSON schema, a regular expression or a grammar that the text has to follow.
        prompt_logprobs: report the log-probabilities of each token of the prompt, as logprobs does of the output.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: end the text after the stop text that ended it.

    The logits change in this order, before temperature, top_k, top_p and min_p: allowed_token_ids, min_tokens and
    logit_bias, logits_processors, bad_words, structured_outputs, then the penalties. A stage takes none of these, and
    no min_p. n, stop, bad_words, structured_outputs, skip_special_tokens, include_stop_str_in_output and
    prompt_logprobs are for roseinfer.LLM, which has a tokenizer and samples by itself.

    Raises ValueError for a value out of range, for an unknown name, and for one of vLLM's that is not taken.
    """

    max_tokens: int | None = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    n: int = 1
    min_p: float = 0.0
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    logits_processors: tuple[LogitsProcessor, ...] = field(default=(), hash=False)
    structured_outputs: StructuredOutputsParams | None = field(default=None, hash=False)
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    changes_logits: bool = field(init=False, repr=False, compare=False, default=False)
    takes_likeliest: bool = field(init=False, repr=False, compare=False, default=False)
    most_tokens: int = field(init=False, repr=False, compare=False, default=UNBOUNDED)  # max_tokens as a number

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_stops()
        self._check_changes()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")
        for name in ("logprobs", "prompt_logprobs"):
            number = getattr(self, name)
            is_number_of = number is None or (is_count(number) and number <= MOST_LOGPROBS)
            _require(is_number_of, name, number, f"an integer from 0 to {MOST_LOGPROBS}")
        self._set("changes_logits", bool(self.logit_changes()))
        self._set("most_tokens", UNBOUNDED if self.max_tokens is None else self.max_tokens)
        # What nearly every step of a greedy batch asks: then the model's likeliest tokens are all that it needs.
        is_likeliest = self.temperature == 0 and self.logprobs is None and not self.changes_logits
        self._set("takes_likeliest", is_likeliest)

    def logit_changes(self) -> list[str]:
        """Return the names of the fields that change logits before a token is chosen from them."""
        return [name for name, value in UNCHANGED.items() if getattr(self, name) != value]

    def _check_numbers(self) -> None:
        is_most = self.max_tokens is None or (is_count(self.max_tokens) and self.max_tokens >= 1)
        _require(is_most, "max_tokens", self.max_tokens, "an integer >= 1")
        is_least = is_count(self.min_tokens) and (self.max_tokens is None or self.min_tokens <= self.max_tokens)
        _require(is_least, "min_tokens", self.min_tokens, f"an integer from 0 to max_tokens={self.max_tokens}")
        is_temperature = is_number(self.temperature) and 0 <= self.temperature < float("inf")
        _require(is_temperature, "temperature", self.temperature, "a number >= 0 (0 is greedy)")
        is_top_k = is_integer(self.top_k) and self.top_k >= -1
        _require(is_top_k, "top_k", self.top_k, "an integer >= 0 (0 keeps all, and so does vLLM's -1)")
        self._set("top_k", max(self.top_k, 0))
        is_share = is_number(self.top_p) and 0 < self.top_p <= 1
        _require(is_share, "top_p", self.top_p, "a number above 0 and at most 1 (1 keeps all)")
        is_share = is_number(self.min_p) and 0 <= self.min_p <= 1
        _require(is_share, "min_p", self.min_p, "a number from 0 to 1 (0 keeps all)")
        is_seed = self.seed is None or (is_count(self.seed) and self.seed <= MOST_SEED)
        _require(is_seed, "seed", self.seed, f"an integer from 0 to {MOST_SEED}")
        _require(is_count(self.n) and self.n >= 1, "n", self.n, "an integer >= 1")
        is_drawn = self.n == 1 or self.temperature > 0
        _require(is_drawn, "n", self.n, "1 at temperature=0, where all samples are the same")
        is_last_seed = self.seed is None or self.seed + self.n - 1 <= MOST_SEED
        _require(is_last_seed, "seed", self.seed, f"at most {MOST_SEED + 1 - self.n} for n={self.n} samples")

    def _check_stops(self) -> None:
        self._set_tuple("stop_token_ids", is_count, "a tuple of token ids")
        for name in ("stop", "bad_words"):
            self._set_tuple(name, _is_text, "a text or a list of texts, none of them empty")

    def _check_changes(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            is_penalty = is_number(value) and -MOST_PENALTY <= value <= MOST_PENALTY
            _require(
                is_penalty, name, value, f"a number from -{MOST_PENALTY:g} to {MOST_PENALTY:g} (0 changes nothing)"
            )
        is_factor = is_number(self.repetition_penalty) and 0 < self.repetition_penalty < float("inf")
        _require(is_factor, "repetition_penalty", self.repetition_penalty, "a number above 0 (1 changes nothing)")
        if (allowed := self.allowed_token_ids) is not None:
            form = "a list of token ids, at least one"
            self._set_tuple("allowed_token_ids", is_count, form)
            _require(bool(self.allowed_token_ids), "allowed_token_ids", allowed, form)
        if self.logit_bias is not None:
            self._set("logit_bias", _limited(self.logit_bias))
        self._set_tuple("logits_processors", callable, "a list of functions")
        structured = self.structured_outputs
        is_structured = structured is None or isinstance(structured, StructuredOutputsParams)
        _require(is_structured, "structured_outputs", structured, "a StructuredOutputsParams")

    def _set_tuple(self, name: str, is_valid: Callable[[Any], bool], allowed: str) -> None:
        """Make a tuple of an iterable. A text becomes a tuple of one, and None an empty one."""
        given = getattr(self, name)
        one = (given,) if isinstance(given, str) else given
        values = () if one is None else tuple(one) if isinstance(one, Iterable) else (None,)
        _require(all(map(is_valid, values)), name, given, allowed)
        self._set(name, values)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


def refuse_unresolved(params: SamplingParams) -> None:
    """Refuse settings that only roseinfer.LLM offers, for code that runs single sequences of ids. Raises ValueError."""
    if params.stop:
        raise ValueError(f"stop={params.stop!r} needs a tokenizer: use roseinfer.LLM, or stop_token_ids")
    if params.n > 1:
        raise ValueError(f"n={params.n} samples are for roseinfer.LLM: here each is a Sequence of its own")
    if params.max_tokens is None:
        raise ValueError(
            "max_tokens=None is for roseinfer.LLM, which knows how long a sequence may become: give a number"
        )
    for name in ("bad_words", "structured_outputs"):
        if value := getattr(params, name):
            raise ValueError(f"{name}={value!r} needs a tokenizer: use roseinfer.LLM, or logits_processors")
    if params.prompt_logprobs is not None:
        raise ValueError(f"prompt_logprobs={params.prompt_logprobs} is for roseinfer.LLM: a sequence has none")


def is_count(value: object) -> bool:
    return is_integer(value) and value >= 0


def are_counts(values: Collection[Any]) -> bool:
    """Whether is_count holds for each value. Lists of plain ints, such as long prompts, are checked at C speed."""
    return {*map(type, values)} == {int} and min(values) >= 0 or all(map(is_count, values))


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _limited(bias: object) -> dict[int, float] | None:
    """Return the biases, each limited to MOST_BIAS either way; None for an empty dict. Raises ValueError."""
    is_bias = isinstance(bias, Mapping) and all(
        is_count(token) and is_number(value) and abs(value) < float("inf") for token, value in bias.items()
    )
    _require(is_bias, "logit_bias", bias, "a dict from token ids to numbers")
    assert isinstance(bias, Mapping)
    return {token: float(min(max(value, -MOST_BIAS), MOST_BIAS)) for token, value in bias.items()} or None


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")
