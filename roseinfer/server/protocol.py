"""The bodies of requests, as OpenAI's and vLLM's clients send them. A field that is unknown is refused by name.

What the API has and the engine has not may be sent with the value that asks for nothing: see params.py.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MOST_STOPS, MOST_STOP_CHARACTERS = 16, 1000
MOST_STOP_TOKENS = 1000
MOST_SAMPLES = 128  # n, as OpenAI has it
MOST_TOKENS = 2**31 - 1
MOST_FIELDS = 200  # of one object
MOST_BIASES = 4096

StopText = Annotated[str, Field(min_length=1, max_length=MOST_STOP_CHARACTERS)]
TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
T = TypeVar("T")
Prompts = Annotated[list[T], Field(min_length=1, fail_fast=True)]


def with_few_fields(given: Any, most: int) -> Any:
    """What is given. Raises PydanticCustomError for an object with more fields, before each of them is looked at."""
    if isinstance(given, dict) and len(given) > most:
        raise PydanticCustomError("too_many_fields", "it must have at most {most} fields", {"most": most})
    return given


def few(most: int) -> BeforeValidator:
    return BeforeValidator(partial(with_few_fields, most=most))


class Body(BaseModel):
    """Types are as JSON has them: "16" is no number. Of what is wrong in a list or an object only the first is told:
    100,000 errors would hold up all other requests for seconds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def few_fields(cls, given: Any) -> Any:
        return with_few_fields(given, MOST_FIELDS)


class StreamOptions(Body):
    include_usage: bool = Field(default=False, description="one more chunk at the end, with the usage and no choices")
    include_obfuscation: bool = Field(default=False, description="accepted, and nothing is obfuscated")


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchema(Body):
    name: str
    description: str | None = None
    # OpenAI's field is named schema, which pydantic's models have as a method.
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(default=None, description="accepted: a text always follows its schema here")


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class StructuredOutputs(Body):
    """As StructuredOutputsParams: exactly one of these."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: str | None = Field(default=None, description="in llguidance's Lark syntax")
    json_object: bool | None = None
    disable_any_whitespace: bool | None = Field(default=None, description="JSON without spaces between its parts")


class SamplingBody(Body):
    """What both kinds of completions have."""

    model: str | None = Field(default=None, description="the name that /v1/models gives; that one when not given")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = Field(
        default=None, description="0 and -1 keep all; vLLM's"
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)] | None = Field(
        default=None, description="vLLM's"
    )
    ignore_eos: bool | None = Field(default=None, description="go on beyond the model's end token; vLLM's")
    user: str | None = Field(default=None, description="accepted, and not used")
    metadata: Annotated[dict[str, str] | None, few(MOST_FIELDS)] = Field(
        default=None, description="accepted, and not used"
    )
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = None
    logit_bias: Annotated[dict[str, float] | None, few(MOST_BIASES)] = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = Field(
        default=None,
        discriminator="type",
        description="the form that the text follows: a JSON object, or a JSON schema",
    )
    structured_outputs: StructuredOutputs | None = Field(default=None, description="the same, and more forms; vLLM's")
    allowed_token_ids: Annotated[list[TokenId], Field(max_length=MOST_STOP_TOKENS, fail_fast=True)] | None = Field(
        default=None, description="the only tokens that may be chosen; vLLM's"
    )
    bad_words: Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True)] | None = Field(
        default=None, description="texts that are not written; vLLM's"
    )
    skip_special_tokens: bool | None = Field(default=None, description="vLLM's")
    include_stop_str_in_output: bool | None = Field(default=None, description="vLLM's")


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    prompt: str | TokenIds | Prompts[str] | Prompts[TokenIds]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class Message(Body):
    """A part of a conversation. What the model's template makes of it is the template's business."""

    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class ChatBody(SamplingBody):
    """POST /v1/chat/completions. Without max_tokens an answer may be as long as the model has room for."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = Field(
        default=None, description="max_tokens by its later name"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool = Field(default=True, description="vLLM's")
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="further names that the template reads; vLLM's"
    )
    continue_final_message: bool = Field(default=False, description="go on with the last message; vLLM's")
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="accepted: without tools nothing is called")
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = Field(default=None, description="accepted, and not used")
    store: bool | None = None


class GenerateParameters(Body):
    """The parameters of POST /generate."""

    max_new_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    do_sample: bool | None = Field(default=None, description="false is greedy, whatever the temperature")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[StopText], Field(max_length=MOST_STOPS, fail_fast=True)] | None = None
    return_full_text: bool = Field(default=False, description="the prompt stands before the text")


class GenerateBody(Body):
    """POST /generate: the form of post 002's server, which is also text-generation-inference's."""

    inputs: str
    parameters: GenerateParameters = GenerateParameters()
    stream: bool = False
