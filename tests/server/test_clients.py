"""What clients send and ask unasked: a message sent back as it came, nulls, fields of other servers, small paths."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from running import SIZES, running_server

from roseinfer.paths import ROOT
from roseinfer.sequence import SamplingParams
from roseinfer.server.protocol import NOT_HERE, NOT_USED, ChatBody, CompletionBody, StreamOptions

ASK = [{"role": "user", "content": "Return a new"}]
BODIES = {"completions": CompletionBody, "chat": ChatBody}


@pytest.fixture
def server(chatty):
    """In place of conftest's: with a chat template."""
    return chatty


@pytest.fixture
def client(chat_client):
    return chat_client


def creates(client):
    """The two calls of the official client, with what they need."""
    return {
        "completions": (client.completions.create, {"model": "tiny", "prompt": "If", "max_tokens": 2}),
        "chat": (client.chat.completions.create, {"model": "tiny", "messages": ASK, "max_tokens": 2}),
    }


# Messages


@pytest.mark.slow
def test_a_message_may_be_sent_back_as_it_came(client, offline):
    first = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=4).choices[0].message
    given = first.model_dump()
    assert {"annotations", "audio", "function_call", "tool_calls", "refusal"} <= given.keys()
    history = [*ASK, given | {"annotations": []}, *ASK]
    [output] = offline.llm.chat(
        [*ASK, {"role": "assistant", "content": first.content}, *ASK], SamplingParams(max_tokens=6), use_tqdm=False
    )
    for messages in (history, [*ASK, first, *ASK]):
        answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=6)
        assert answer.choices[0].message.content == output.outputs[0].text


@pytest.mark.slow
def test_a_message_without_text_is_one_of_an_empty_text(client):
    texts = []
    for content in (None, ""):
        history = [*ASK, ChatCompletionMessage(role="assistant", content=content).model_dump(), *ASK]
        answer = client.chat.completions.create(model="tiny", messages=history, max_tokens=6)
        texts.append(answer.choices[0].message.content)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_the_template_reads_what_was_reasoned(server):
    prompts = []
    for reasoned in ("because", None):
        messages = [*ASK, {"role": "assistant", "content": "so", "reasoning_content": reasoned}]
        _, answer = server.ask("/tokenize", {"messages": messages})
        prompts.append(server.ask("/detokenize", {"tokens": answer["tokens"]})[1]["prompt"])
    assert "[assistant] becauseso\n" in prompts[0] and "[assistant] so\n" in prompts[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["audio", "function_call", "unheard_of"])
def test_a_key_with_a_value_is_still_refused_by_name(server, name):
    message = {"role": "user", "content": "If", name: {"id": "1"}}
    status, answer = server.ask("/v1/chat/completions", {"messages": [message]})
    assert status == 400 and answer["error"]["param"] == f"messages[0].{name}"


# Fields


@pytest.mark.slow
@pytest.mark.parametrize("kind", BODIES)
def test_null_asks_for_nothing_wherever_a_field_is_not_required(server, client, kind):
    create, given = creates(client)[kind]
    wanted = create(**given).choices[0]
    optional = {name for name, field in BODIES[kind].model_fields.items() if not field.is_required()}
    own = set(inspect.signature(create).parameters) - {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert create(**given, extra_body=dict.fromkeys((optional | own) - given.keys())).choices[0] == wanted


@pytest.mark.slow
def test_null_asks_for_nothing_of_a_body_that_openai_has_not(server):
    given = {"inputs": "If", "parameters": {"max_new_tokens": 2}}
    nulls = given | {"stream": None, "details": None, "parameters": {"max_new_tokens": 2, "return_full_text": None}}
    assert server.ask("/generate", nulls) == server.ask("/generate", given)
    assert server.ask("/generate", {"inputs": "If", "parameters": None})[0] == 200
    asked = {"prompt": "If", "return_token_strs": None, "truncate": None}
    assert server.ask("/tokenize", asked) == server.ask("/tokenize", {"prompt": "If"})


@pytest.mark.slow
@pytest.mark.parametrize("kind", BODIES)
def test_a_field_that_changes_no_token_is_accepted(client, kind):
    create, given = creates(client)[kind]
    wanted = create(**given).choices[0]
    values = {
        "metadata": {"a": "b"},
        "prediction": {"type": "content", "content": "If"},
        "prompt_cache_options": {"mode": "explicit"},
    }
    fields = {name: values.get(name, "low") for name in unused(BODIES[kind])}
    assert {"user", "prompt_cache_key", "safety_identifier", "verbosity"} <= fields.keys()
    assert create(**given, extra_body=fields).choices[0] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("kind", BODIES)
def test_options_of_a_stream_that_are_not_used(client, kind):
    create, given = creates(client)[kind]
    options = {"include_usage": True, **dict.fromkeys(unused(StreamOptions), True)}
    assert "continuous_usage_stats" in options
    *chunks, last = create(**given, stream=True, stream_options=options)
    assert last.usage.completion_tokens == 2 and {chunk.usage for chunk in chunks} == {None}


def unused(body, description=NOT_USED):
    return [name for name, field in body.model_fields.items() if field.description == description]


def test_the_docs_have_every_field():
    """docs/serving.md: its table of requests' fields is that of the code."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.split("| field | taken |")[1].split("\n\n")[0]
    rows = [row.split("|")[1:3] for row in table.splitlines()[2:]]
    names = {taken.strip(): set(re.findall(r"`(\w+)`", fields)) for fields, taken in rows}
    fields = {*CompletionBody.model_fields, *ChatBody.model_fields} - {"model", "messages"}
    told = {name for row, _ in rows for name in re.findall(r"`(\w+)`", row)}
    assert told - {"json_object", "json_schema", *StreamOptions.model_fields} == fields
    [not_used] = [row for taken, row in names.items() if taken.startswith("accepted, and without an effect")]
    assert not_used - {"stream_options", *StreamOptions.model_fields} == {*unused(CompletionBody), *unused(ChatBody)}
    assert not_used & StreamOptions.model_fields.keys() == {*unused(StreamOptions)}
    [neutral] = [row for taken, row in names.items() if taken.startswith("only the value that asks for nothing")]
    assert neutral == {*unused(CompletionBody, NOT_HERE), *unused(ChatBody, NOT_HERE)}


# Errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", BODIES)
def test_what_is_too_long_has_openais_code(client, kind):
    create, given = creates(client)[kind]
    long = {"prompt": "If " * 600} if "prompt" in given else {"messages": [{"role": "user", "content": "If " * 600}]}
    with pytest.raises(openai.BadRequestError, match="at most 511") as refused:
        create(**given | long)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.slow
def test_a_request_that_never_fits_the_pool_is_too_long_as_well():
    with running_server(sizes=SIZES | {"num_kvcache_blocks": 4}) as small:
        status, answer = small.ask("/v1/completions", {"prompt": "If " * 100, "max_tokens": 2})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    assert "num_blocks=4" in answer["error"]["message"]


# Paths


@pytest.mark.slow
def test_a_text_and_its_tokens(server, offline):
    tokenizer = offline.llm.get_tokenizer()
    ids = tokenizer.encode("Return é").ids
    wanted = {"count": len(ids), "max_model_len": 512, "tokens": ids, "token_strs": None}
    assert server.ask("/tokenize", {"model": "tiny", "prompt": "Return é"}) == (200, wanted)
    _, answer = server.ask("/tokenize", {"prompt": "Return é", "return_token_strs": True})
    assert answer["token_strs"] == tokenizer.encode("Return é").tokens
    assert server.ask("/detokenize", {"tokens": ids}) == (200, {"prompt": "Return é"})
    assert server.ask("/detokenize", {"tokens": []}) == (200, {"prompt": ""})


@pytest.mark.slow
def test_tokens_of_a_conversation_are_those_of_its_request(server, client):
    _, answer = server.ask("/tokenize", {"messages": ASK})
    asked = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=1)
    assert answer["count"] == asked.usage.prompt_tokens == len(answer["tokens"])


@pytest.mark.slow
def test_version(server):
    assert server.ask("/version") == (200, {"version": version("roseinfer")})


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/", "/health", "/version", "/v1/models", "/v1/models/tiny", "/metrics", "/live", "/openapi.json"]
)
def test_head_is_get_without_a_body(server, path):
    def first_line_and_body(method):
        with server.connect() as connection:
            connection.sendall(
                f"{method} {path} HTTP/1.1\r\nHost: {server.address[0]}\r\nConnection: close\r\n\r\n".encode()
            )
            head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
        return head.splitlines()[0], body

    line, body = first_line_and_body("HEAD")
    assert line == first_line_and_body("GET")[0] and b"200" in line and not body
