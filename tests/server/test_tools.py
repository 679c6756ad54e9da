"""Tools, asked for by the official `openai` client: told to the model, or required of its answer."""

from __future__ import annotations

import json
from enum import Enum

import jsonschema
import openai
import pytest
from pydantic import BaseModel

from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow

WITHOUT_TOOLS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
ASK = [{"role": "user", "content": "Copy a file"}]


class Mode(Enum):
    FAST = "fast"
    SAFE = 'safe {"}'


class copy(BaseModel):
    """Copies a file."""

    mode: Mode
    deep: bool


PARAMETERS = openai.pydantic_function_tool(copy)["function"]["parameters"]  # refers to Mode
COPY = {"type": "function", "function": {"name": "copy", "description": "Copies.", "parameters": PARAMETERS}}
STOP = {"type": "function", "function": {"name": "stop", "description": "Stops."}}
TOOLS = [COPY, STOP]
NAMED = {"type": "function", "function": {"name": "copy"}}
SCHEMAS = {"copy": COPY["function"]["parameters"], "stop": {"type": "object", "maxProperties": 0}}


def ask(client, stream=False, messages=ASK, **fields):
    """(calls, finish_reason, content) of an answer, added up where it is streamed."""
    fields = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 120} | fields
    if not stream:
        [choice] = client.chat.completions.create(**fields).choices
        calls = choice.message.tool_calls or []
        assert all(call.type == "function" and call.id.startswith("call_") for call in calls)
        return [(c.function.name, c.function.arguments) for c in calls], choice.finish_reason, choice.message.content
    calls, content, reasons = {}, None, []
    for chunk in client.chat.completions.create(stream=True, **fields):
        [choice] = chunk.choices
        reasons.append(choice.finish_reason)
        content = content if choice.delta.content is None else (content or "") + choice.delta.content
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.type == "function" and call.index == len(calls)
                calls[call.index] = [call.function.name, ""]
            calls[call.index][1] += call.function.arguments
    assert set(reasons[:-1]) == {None}
    return list(map(tuple, calls.values())), reasons[-1], content


def check(calls):
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def asked_twice(client, **fields):
    """(calls, finish_reason, content) of an answer that is the same whole and streamed."""
    whole, streamed = (ask(client, stream, **fields) for stream in (False, True))
    assert whole == streamed
    return whole


def test_a_named_tool_is_called_once(chat_client):
    calls, reason, content = asked_twice(chat_client, tool_choice=NAMED)
    assert [name for name, _ in calls] == ["copy"] and reason == "stop" and content is None
    check(calls)


@pytest.mark.parametrize("seed", range(3))
def test_a_required_call_is_of_any_tool(chat_client, seed):
    wish = {"tool_choice": "required", "parallel_tool_calls": False, "temperature": 1.5, "seed": seed}
    calls, reason, content = asked_twice(chat_client, **wish)
    assert len(calls) == 1 and reason == "tool_calls" and content is None
    check(calls)


def test_several_calls_may_be_required(chat_client):
    wish = {"tool_choice": "required", "tools": [STOP], "temperature": 2.0}
    answers = [asked_twice(chat_client, seed=seed, **wish) for seed in range(5)]
    assert {reason for _, reason, _ in answers} <= {"tool_calls", "length"}
    assert max(len(calls) for calls, _, _ in answers) > 1 and min(len(calls) for calls, _, _ in answers) > 0
    assert {call for calls, _, _ in answers for call in calls[:-1]} == {("stop", "{}")}


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_says_so(chat_client, stream):
    [(name, whole)], reason, _ = ask(chat_client, tool_choice=NAMED)
    assert reason == "stop"
    for max_tokens in (1, 20, 30):
        calls, reason, content = ask(chat_client, stream, tool_choice=NAMED, max_tokens=max_tokens)
        assert reason == "length" and content is None
        assert all(found == name and whole.startswith(part) for found, part in calls)


def test_a_call_that_a_stop_text_cuts_off_is_not_called_whole(chat_client):
    wish = {"tool_choice": "required", "tools": [COPY], "parallel_tool_calls": False}
    [(_, whole)], reason, _ = asked_twice(chat_client, **wish)
    assert reason == "tool_calls"
    [(_, part)], reason, _ = asked_twice(chat_client, stop='"deep"', **wish)
    assert reason == "stop" and whole.startswith(part)


def test_samples_have_calls_of_their_own(chat_client):
    answer = chat_client.chat.completions.create(
        model="tiny", messages=ASK, tools=TOOLS, tool_choice=NAMED, n=3, temperature=2.0, seed=1, max_tokens=120
    )
    calls = [choice.message.tool_calls[0] for choice in answer.choices]
    check((call.function.name, call.function.arguments) for call in calls)
    assert len({call.id for call in calls}) == 3


def test_the_clients_own_helpers_read_the_calls(chat_client):
    wish = {"model": "tiny", "messages": ASK, "tools": [openai.pydantic_function_tool(copy)], "tool_choice": NAMED}
    [call] = chat_client.chat.completions.parse(**wish).choices[0].message.tool_calls
    with chat_client.chat.completions.stream(**wish) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, copy)
    assert streamed.function.parsed_arguments == call.function.parsed_arguments


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": "none"}])
def test_tools_are_told_to_the_model(chat_client, offline, choice):
    [output] = offline.llm.chat(ASK, SamplingParams(max_tokens=9), use_tqdm=False, tools=TOOLS)
    assert '"name": "stop"' in output.prompt
    assert asked_twice(chat_client, max_tokens=9, **choice) == (
        [],
        output.outputs[0].finish_reason,
        output.outputs[0].text,
    )


def test_a_conversation_goes_on_with_what_the_tool_said(chat_client, offline):
    message = (
        chat_client.chat.completions.create(model="tiny", messages=ASK, tools=TOOLS, tool_choice=NAMED, max_tokens=120)
        .choices[0]
        .message
    )
    history = [
        *ASK,
        message.model_dump(),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "done"},
    ]
    [output] = offline.llm.chat(history, SamplingParams(max_tokens=9), use_tqdm=False, tools=TOOLS)
    assert "<copy:" in output.prompt
    assert ask(chat_client, messages=history, max_tokens=9)[2] == output.outputs[0].text


def test_a_template_that_does_not_read_tools(chatty, chat_client, monkeypatch):
    """None of them can be told to the model, so only a request that does not need this is answered."""
    monkeypatch.setattr(chatty.server.service.prompts, "_chat_template", WITHOUT_TOOLS)
    for choice in ({}, {"tool_choice": "auto"}):
        with pytest.raises(openai.BadRequestError, match="tools cannot be told .* does not read them"):
            ask(chat_client, **choice)
    assert ask(chat_client, tool_choice="none", max_tokens=9) == ask(chat_client, tools=[], max_tokens=9)
    check(ask(chat_client, tool_choice=NAMED)[0])
