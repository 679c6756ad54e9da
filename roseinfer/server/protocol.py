"""The bodies of requests, as OpenAI's and vLLM's clients send them. A field that is unknown is refused by name.

What the API has and the engine has not may be sent with the value that asks for nothing.
"""

from __future__ import annotations

from functools import cache, partial
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
# As OpenAI has them, and the dot. A name has no character that JSON would write in another way.
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
NOT_USED = "accepted, and not used"
NOT_HERE = "not supported: it may be sent with the value that asks for nothing"
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
T = TypeVar("T")
Prompts = Annotated[list[T], Field(min_length=1, fail_fast=True)]


def with_few_fields(given: Any, most: int) -> Any:
    """Return what is given. Raises PydanticCustomError for an object with more fields, without a look at each."""
    if isinstance(given, dict) and len(given) > most:
        raise PydanticCustomError("too_many_fields", "it must have at most {most} fields", {"most": most})
    return given


def few(most: int) -> BeforeValidator:
    return BeforeValidator(partial(with_few_fields, most=most))


class Body(BaseModel):
    """A JSON body, with JSON's types: "16" is no number.

    Only the first error in a list or an object is told: 100,000 errors would hold up all other requests for seconds.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Leave out nulls: clients write one for each field that they do not use, whether it is known here or not."""
        if not isinstance(with_few_fields(given, MOST_FIELDS), dict):
            return given
        return {name: value for name, value in given.items() if value is not None or name in takes_null(cls)}


@cache
def takes_null(body: type[BaseModel]) -> frozenset[str]:
    """List the fields whose null is kept: it is the default, or an error where the field is required."""
    fields = body.model_fields.items()
    return frozenset(field.alias or name for name, field in fields if field.is_required() or field.default is None)


class StreamOptions(Body):
    include_usage: bool = Field(default=False, description="one more chunk at the end, with the usage and no choices")
    include_obfuscation: bool = Field(default=False, description=NOT_USED)
    continuous_usage_stats: bool = Field(default=False, description=NOT_USED)


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
    """The form of a text, as in StructuredOutputsParams: exactly one of these fields."""

    json_schema: dict[str, Any] | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    grammar: str | None = Field(default=None, description="in llguidance's Lark syntax")
    json_object: bool | None = None
    disable_any_whitespace: bool | None = Field(default=None, description="JSON without spaces between its parts")


class SamplingBody(Body):
    """The fields that both kinds of completions have."""

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
    user: str | None = Field(default=None, description=NOT_USED)
    safety_identifier: str | None = Field(default=None, description=NOT_USED)
    metadata: Annotated[dict[str, str] | None, few(MOST_FIELDS)] = Field(default=None, description=NOT_USED)
    service_tier: str | None = Field(default=None, description=NOT_USED)
    prompt_cache_key: str | None = Field(default=None, description=NOT_USED)
    prompt_cache_options: dict[str, Any] | None = Field(default=None, description=NOT_USED)
    prompt_cache_retention: str | None = Field(default=None, description=NOT_USED)
    prediction: dict[str, Any] | None = Field(default=None, description=NOT_USED)
    verbosity: str | None = Field(default=None, description=NOT_USED)
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
    structured_outputs: StructuredOutputs | None = Field(
        default=None, description="as response_format, with more forms; vLLM's"
    )
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
    max_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = Field(
        default=None, description="0: nothing new, for the log-probabilities of a prompt that is echoed"
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = Field(default=None, description="the prompt stands before the text, and before its logprobs")
    suffix: Literal[""] | None = Field(default=None, description=NOT_HERE)
    best_of: Literal[1] | None = Field(default=None, description=NOT_HERE)

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


class Message(Body):
    """A part of a conversation. What the model's template makes of it is the template's business."""

    role: str
    content: str | Objects | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    annotations: Objects | None = None
    tool_calls: Objects | None = None
    tool_call_id: str | None = None


class Function(Body):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None, description="a JSON schema of an object; none when not given"
    )
    strict: bool | None = Field(default=None, description="accepted: arguments always follow the parameters here")


class Tool(Body):
    type: Literal["function"]
    function: Function


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


class ConversationBody(Body):
    """A conversation, and how the chat template writes it down."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_generation_prompt: bool = Field(default=True, description="vLLM's")
    continue_final_message: bool = Field(default=False, description="go on with the last message; vLLM's")
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="further names that the template reads; vLLM's"
    )
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = Field(
        default=None, description="functions that the template tells the model of"
    )

    @property
    def must_read_tools(self) -> bool:
        """Whether a template that does not read them is an error."""
        return True


class ChatBody(SamplingBody, ConversationBody):
    """POST /v1/chat/completions. Without max_tokens an answer may be as long as the model has room for."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = Field(
        default=None, description="max_tokens by its later name"
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="required, or a function by its name: the answer is a call of one"
    )
    parallel_tool_calls: bool | None = Field(default=None, description="false: one call, where several may be required")
    modalities: list[Literal["text"]] | None = Field(default=None, description=NOT_HERE)
    reasoning_effort: Literal["none"] | None = Field(default=None, description=NOT_HERE)
    store: Literal[False] | None = Field(default=None, description=NOT_HERE)

    @property
    def must_read_tools(self) -> bool:
        return self.tool_choice in (None, "auto")


class TokenizeBody(ConversationBody):
    """POST /tokenize: the form of vLLM. A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = Field(default=None, description="true for a text, false for a conversation")
    return_token_strs: bool = Field(default=False, description="the tokens as the vocabulary writes them, too")


class DetokenizeBody(Body):
    """POST /detokenize: the form of vLLM."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


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
