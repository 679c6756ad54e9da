"""What a request's body asks for, as SamplingParams."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pydantic import BaseModel

from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams
from roseinfer.structured_outputs import StructuredOutputsParams

from .errors import ApiError
from .protocol import (
    ChatBody,
    CompletionBody,
    GenerateParameters,
    JsonObjectFormat,
    JsonSchemaFormat,
    SamplingBody,
)
from .tool_calls import call_form

# Fields that mean in a body what they mean in SamplingParams. The others have another form there.
TAKEN = {own.name for own in fields(SamplingParams) if own.init} - {"logit_bias", "structured_outputs", "logprobs"}


class Defaults:
    """Values for requests that do not give them: those of llm.get_default_sampling_params(), within these limits.

    end_tokens: end every request, beside the model's own. most_new_tokens: the most that a request may ask for; None
    for as many as there is room for.
    """

    def __init__(self, llm: LLM, end_tokens: tuple[int, ...] = (), most_new_tokens: int | None = None) -> None:
        params = llm.get_default_sampling_params()
        self.params = replace(params, stop_token_ids=(*params.stop_token_ids, *end_tokens))
        self.most_new_tokens = most_new_tokens
        if most_new_tokens is not None and params.most_tokens > most_new_tokens:
            self.params = replace(self.params, max_tokens=most_new_tokens)

    def of_completion(self, body: CompletionBody) -> SamplingParams:
        """Return what a completion asks for. With max_tokens=0 the engine makes a token that the answer leaves out."""
        more: dict[str, Any] = {} if body.logprobs is None else {"logprobs": body.logprobs}
        if body.echo:
            more["prompt_logprobs"] = body.logprobs
        if body.max_tokens == 0:
            if body.min_tokens:
                raise ApiError(f"min_tokens must be at most max_tokens=0, got {body.min_tokens}", "min_tokens")
            more["max_tokens"] = 1
        return self._params(body, more)

    def of_chat(self, body: ChatBody) -> SamplingParams:
        """Return what a conversation asks for. Without a limit it may fill the model's room (max_tokens=None)."""
        if body.top_logprobs and not body.logprobs:
            raise ApiError(f"top_logprobs={body.top_logprobs} needs logprobs=true", "top_logprobs")
        more: dict[str, Any] = {"logprobs": body.top_logprobs or 0} if body.logprobs else {}
        if body.max_completion_tokens is not None:
            if body.max_tokens not in (None, body.max_completion_tokens):
                raise ApiError(
                    f"max_completion_tokens={body.max_completion_tokens} and max_tokens={body.max_tokens} are one "
                    "setting: send one of them",
                    "max_completion_tokens",
                )
            more["max_tokens"] = body.max_completion_tokens
        elif body.max_tokens is None:
            more["max_tokens"] = self.most_new_tokens
        if form := call_form(body):
            more["structured_outputs"] = form
        return self._params(body, more)

    def of_generate(self, given: GenerateParameters) -> SamplingParams:
        found = taken(given)
        if given.max_new_tokens is not None:
            found["max_tokens"] = given.max_new_tokens
        if given.do_sample is False:
            found["temperature"] = 0.0
        elif given.do_sample and given.temperature is None:
            found["temperature"] = self.params.temperature or 1.0
        return self._made(found)

    def _params(self, body: SamplingBody, more: dict[str, Any]) -> SamplingParams:
        found = taken(body)
        if body.logit_bias:
            found["logit_bias"] = biases(body.logit_bias)
        if structured := structured_outputs(body):
            found["structured_outputs"] = structured
        return self._made(found | more)

    def _made(self, given: dict[str, Any]) -> SamplingParams:
        """Make the params. Raises ApiError for what SamplingParams refuses, and for too many tokens."""
        asked, most = given.get("max_tokens"), self.most_new_tokens
        if asked is not None and most is not None and asked > most:
            raise ApiError(f"max_tokens must be at most {most}, the server's max_generate_length, got {asked}")
        if stops := given.get("stop_token_ids"):
            given["stop_token_ids"] = (*self.params.stop_token_ids, *stops)
        return replace(self.params, **given)


def taken(body: BaseModel) -> dict[str, Any]:
    """Return the fields that a client gave, of those that SamplingParams has, too."""
    return {name: value for name in TAKEN if (value := getattr(body, name, None)) is not None}


def biases(given: dict[str, float]) -> dict[int, float]:
    """Convert JSON's keys, which are texts, to token ids. Raises ApiError for one that is no token id."""
    for key in given:
        if not (key.isascii() and key.isdigit()):
            raise ApiError(f"logit_bias must have token ids as keys, got {key!r:.100}", "logit_bias")
    return {int(key): value for key, value in given.items()}


def structured_outputs(body: SamplingBody) -> StructuredOutputsParams | None:
    """Return the form that a text has to follow; None for any."""
    form, own = body.response_format, body.structured_outputs
    if own and form:
        raise ApiError("response_format and structured_outputs are one setting: send one of them", "response_format")
    if own:
        return StructuredOutputsParams(**own.model_dump(by_alias=True, exclude_none=True))
    if isinstance(form, JsonSchemaFormat):
        return StructuredOutputsParams(json=form.json_schema.json_schema)
    return StructuredOutputsParams(json_object=True) if isinstance(form, JsonObjectFormat) else None
