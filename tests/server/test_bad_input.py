"""What clients send by mistake or on purpose: one clear answer each, in OpenAI's form, and the server goes on."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

TEXT, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
USER = [{"role": "user", "content": "If"}]
COPY = {"type": "function", "function": {"name": "copy"}}
LISTED = {"type": "function", "function": {"name": "copy", "parameters": {"type": "array"}}}
MOVED = {"type": "function", "function": {"name": "move"}}
ANY = {"type": "json_object"}


def text(**fields):
    return {"model": "tiny", "prompt": "If", "max_tokens": 2} | fields


def chat(**fields):
    return {"model": "tiny", "messages": USER, "max_tokens": 2} | fields


# (path, body, status, param, words of the message)
# More than llguidance takes, which it says after the first token.
MANY = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}}
CASES = [
    (TEXT, b"", 400, None, "the body must be"),
    (TEXT, b"{", 400, None, "the body must be JSON"),
    (TEXT, b"\xff\xfe", 400, None, ""),
    (TEXT, b"null", 400, None, "the body must be"),
    (TEXT, b"[]", 400, None, "the body must be a JSON object"),
    (TEXT, b"[" * 100_000, 400, None, ""),
    (TEXT, b'{"prompt": "If", "max_tokens": ' + b"9" * 5000 + b"}", 400, None, ""),
    (TEXT, {}, 400, "prompt", "prompt is missing"),
    (TEXT, text(prompt=None), 400, "prompt", "prompt: "),
    (TEXT, text(prompt=""), 400, None, "a prompt must have at least one token"),
    (TEXT, text(prompt=[]), 400, "prompt", "at least 1 item"),
    (TEXT, text(prompt=[[]]), 400, "prompt[0]", "at least 1 item"),
    (TEXT, text(prompt=["If", ""]), 400, None, "a prompt must have at least one token"),
    (TEXT, text(prompt=["If", 3]), 400, "prompt[0]", "prompt[0]: "),
    (TEXT, text(prompt=[1.5]), 400, "prompt[0]", "prompt[0]: "),
    (TEXT, text(prompt=[3, -1]), 400, "prompt[1]", "greater than or equal to 0"),
    (TEXT, text(prompt=[10**9]), 400, None, "1000000000"),
    (TEXT, text(prompt={"text": "If"}), 400, "prompt", "prompt: "),
    (TEXT, text(prompt="If " * 600), 400, None, "at most 511 with max_model_len=512"),
    (TEXT, text(prompt="x" * 1_000_000), 400, None, "at most 511 with max_model_len=512"),
    (TEXT, text(prompt="x" * 1_100_000), 413, None, "at most 1,024 KiB"),
    (TEXT, text(prompt="If \ud800"), 400, None, "character 3 is half of a surrogate"),
    (CHAT, chat(max_tokens=0), 400, "max_tokens", "greater than or equal to 1, got 0"),
    (TEXT, text(max_tokens=-5), 400, "max_tokens", "got -5"),
    (TEXT, text(max_tokens="16"), 400, "max_tokens", "valid integer, got '16'"),
    (TEXT, text(max_tokens=True), 400, "max_tokens", "got True"),
    (TEXT, text(max_tokens=10**30), 400, "max_tokens", "less than or equal to"),
    (TEXT, text(n=129), 400, "n", "less than or equal to 128"),
    (TEXT, text(n=2), 400, None, "temperature=0"),
    (TEXT, text(n=128, temperature=1, prompt=["If"] * 4), 400, "n", "ask for 512 samples"),
    (TEXT, text(temperature=-0.1), 400, "temperature", "got -0.1"),
    (TEXT, text(temperature=2.1), 400, "temperature", "less than or equal to 2"),
    (TEXT, b'{"prompt": "If", "temperature": NaN}', 400, "temperature", "temperature"),
    (TEXT, b'{"prompt": "If", "max_tokens": 1e400}', 400, "max_tokens", "max_tokens"),
    (TEXT, text(top_p=0), 400, "top_p", "greater than 0"),
    (TEXT, text(top_k=-2), 400, "top_k", "got -2"),
    (TEXT, text(seed=2**63), 400, "seed", "seed"),
    (TEXT, text(seed=2**63 - 1, n=2, temperature=1), 400, None, "seed must be at most"),
    (TEXT, text(stop=""), 400, "stop", "stop"),
    (TEXT, text(stop=["a", ""]), 400, "stop[1]", "stop[1]: String should have at least 1 character, got ''"),
    (TEXT, text(stop=["a"] * 17), 400, "stop", "at most 16 items"),
    (TEXT, text(stop=5), 400, "stop", "stop"),
    (TEXT, text(stop_token_ids=[-1]), 400, "stop_token_ids[0]", "greater than or equal to 0"),
    (TEXT, text(logprobs=21), 400, "logprobs", "less than or equal to 20"),
    (TEXT, text(stream="yes"), 400, "stream", "valid boolean"),
    (TEXT, text(stream_options={"include_usage": True}), 400, "stream_options", "stream=true"),
    (
        TEXT,
        text(stream=True, stream_options={"usage": 1}),
        400,
        "stream_options.usage",
        "stream_options has no field 'usage'",
    ),
    (TEXT, text(maxtokens=5), 400, "maxtokens", "unknown field 'maxtokens' (nearest: max_tokens)"),
    (TEXT, text(**{"\ud800": 1}), 400, None, "valid string"),
    (TEXT, text(**{"a" * 10_000: 1}), 400, "a" * 100, "unknown field"),
    (TEXT, text(best_of=2), 400, "best_of", "best_of: Input should be 1, got 2"),
    (TEXT, text(suffix="."), 400, "suffix", "suffix: Input should be '', got '.'"),
    (TEXT, text(response_format={"type": "xml"}), 400, "response_format", "json_schema"),
    (TEXT, text(response_format={"type": "json_schema"}), 400, "response_format.json_schema", "json_schema is missing"),
    (
        TEXT,
        text(response_format={"type": "json_schema", "json_schema": {"name": 3, "schema": {}}}),
        400,
        "response_format.json_schema.name",
        "response_format.json_schema.name: Input should be a valid string, got 3",
    ),
    (TEXT, text(structured_outputs={"choice": ["a", 3]}), 400, "structured_outputs.choice[1]", "choice[1]: Input"),
    (TEXT, text(structured_outputs={}), 400, None, "exactly one of json"),
    (TEXT, text(structured_outputs={"regex": "("}), 400, None, "regex"),
    (TEXT, text(structured_outputs={"json": {"type": "strange"}}), 400, None, "strange"),
    (TEXT, text(structured_outputs={"json": {"$ref": "#"}}), 400, None, "there is no text that follows it"),
    (TEXT, text(structured_outputs={"choice": ["\ud800"]}), 400, None, "surrogates not allowed"),
    (TEXT, text(structured_outputs={"json": MANY}), 400, None, "structured_outputs failed: ValueError: Parser Error"),
    (TEXT, text(allowed_token_ids=[5], bad_words=["%"]), 400, None, "allowed_token_ids, bad_words left no token"),
    (
        TEXT,
        text(structured_outputs={"regex": "a"}, response_format={"type": "json_object"}),
        400,
        "response_format",
        "one setting",
    ),
    (TEXT, text(logit_bias={"If": 1}), 400, "logit_bias", "token ids as keys, got 'If'"),
    (TEXT, text(logit_bias={"999999": 1}), 400, None, "999999"),
    (TEXT, text(allowed_token_ids=[]), 400, None, "allowed_token_ids"),
    (TEXT, text(min_tokens=5), 400, None, "min_tokens"),
    (TEXT, text(repetition_penalty=0), 400, "repetition_penalty", "greater than 0"),
    (TEXT, text(model="gpt-4"), 404, "model", "no model 'gpt-4' here, only 'tiny'"),
    (CHAT, {"messages": USER}, 400, None, "'tiny' has no chat template (chat_template.jinja, or"),
    (CHAT, {"messages": USER}, 400, None, "): use /v1/completions, or start the server with --chat-template"),
    (CHAT, {"model": "tiny"}, 400, "messages", "messages is missing"),
    (CHAT, chat(messages=[]), 400, "messages", "at least 1 item"),
    (CHAT, chat(messages=[{"content": "If"}]), 400, "messages[0].role", "messages[0].role is missing"),
    (CHAT, chat(messages=[{"role": "user", "text": "If"}]), 400, "messages[0].text", "messages[0] has no field 'text'"),
    (CHAT, chat(messages=[{"role": "user", "content": 3}]), 400, "messages[0].content", "messages[0].content: Input"),
    (CHAT, chat(top_logprobs=2), 400, "top_logprobs", "needs logprobs=true"),
    (CHAT, chat(max_completion_tokens=3), 400, "max_completion_tokens", "one setting"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools[0].function", "function is missing"),
    (CHAT, chat(tools=[{"type": "custom", "custom": {}}]), 400, "tools[0].type", "'function', got 'custom'"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a b"}}]), 400, "tools[0].function.name", "pattern"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice", "there are no tools"),
    (CHAT, chat(tool_choice="any"), 400, "tool_choice", "got 'any'"),
    (CHAT, chat(tools=[COPY], tool_choice=MOVED), 400, "tool_choice", "a function of tools (copy), got 'move'"),
    (CHAT, chat(tools=[COPY, COPY], tool_choice="required"), 400, "tools", "must have different names, got copy, copy"),
    (CHAT, chat(tools=[COPY], tool_choice="required", response_format=ANY), 400, "response_format", "send one of them"),
    (CHAT, chat(tools=[LISTED], tool_choice="required"), 400, "tools", "a schema of an object, got type='array'"),
    ("/tokenize", {}, 400, "prompt", "either prompt or messages"),
    ("/tokenize", {"prompt": "If", "messages": USER}, 400, "prompt", "either prompt or messages"),
    ("/tokenize", {"messages": USER}, 400, None, "no chat template"),
    ("/detokenize", {"tokens": [10**6]}, 400, "tokens", "got 1000000"),
    ("/v1/responses", {"input": "If"}, 404, None, "nothing at POST /v1/responses"),
    (CHAT, chat(modalities=["audio"]), 400, "modalities[0]", "Input should be 'text', got 'audio'"),
    (CHAT, chat(prompt="If"), 400, "prompt", "unknown field 'prompt'"),
    (GENERATE, {}, 400, "inputs", "inputs is missing"),
    (
        GENERATE,
        {"inputs": "If", "parameters": {"max_tokens": 3}},
        400,
        "parameters.max_tokens",
        "parameters has no field",
    ),
    (
        GENERATE,
        {"inputs": "If", "parameters": {"max_new_tokens": 0}},
        400,
        "parameters.max_new_tokens",
        "greater than or equal to 1",
    ),
    ("/models/tiny/generate", {"inputs": "If", "input": 1}, 400, "input", "unknown field 'input' (nearest: inputs)"),
    ("/models/other/generate", {"inputs": "If"}, 404, "model", "no model 'other'"),
    ("/v1/models", {}, 405, None, "does not take POST"),
    ("/v1/models/gpt-4", None, 404, "model", "no model 'gpt-4'"),
    (TEXT, None, 405, None, "does not take GET"),
    ("/no/such/page", None, 404, None, "nothing at GET /no/such/page"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "words"), CASES)
def test_a_bad_request_gets_one_clear_answer(server, path, body, status, param, words):
    got, answer = server.ask(path, body)
    error = answer["error"]
    assert (got, error["param"]) == (status, param), error
    assert words in error["message"] and len(error["message"]) < 3000
    assert error["type"] == "invalid_request_error" and answer.keys() == {"error"}
    assert error.keys() == {"message", "type", "param", "code"}


def test_a_stream_ends_with_the_error_of_its_own_settings(server):
    status, events, _ = server.exchange(TEXT, text(structured_outputs={"json": MANY}, stream=True))
    error = json.loads(events.strip().split("data: ")[-1])["error"]
    assert status == 200 and error["type"] == "invalid_request_error" and error["code"] == "no_token_left"


@pytest.mark.parametrize(
    ("name", "value"),
    [("repetition_penalty", value) for value in (1e-300, 1e-39, 1e300)] + [("temperature", 1e-300), ("min_p", 1e-300)],
)
def test_an_extreme_value_that_is_allowed_gets_an_answer(server, name, value):
    status, answer = server.ask(TEXT, text(**{name: value}, seed=1))
    assert status == 200 and answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_after_all_of_them_it_answers(server, offline):
    status, answer = server.ask(TEXT, text(max_tokens=8))
    assert status == 200 and answer["choices"][0]["text"] == offline.text("If", max_tokens=8)


def test_a_body_without_its_content_type_is_told_so(server):
    status, answer = server.ask(TEXT, text(), **{"Content-Type": "text/plain"})
    assert status == 400 and "application/json" in answer["error"]["message"]
