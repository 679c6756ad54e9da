"""Each field of the API that SamplingParams has: the answer is the one that LLM gives offline for the same params."""

from __future__ import annotations

import json

import pytest

from roseinfer.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.slow

PROMPT = "Return a new instance of the class. Return a new"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "bc"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}
SAME = [
    {"presence_penalty": 2.0, "ignore_eos": True, "max_tokens": 80},
    {"frequency_penalty": 2.0, "ignore_eos": True, "max_tokens": 80},
    {"repetition_penalty": 1.8},
    {"min_p": 0.2, "temperature": 1.5, "seed": 5},
    {"min_tokens": 12, "stop": [" "]},
    {"allowed_token_ids": [5, 6, 7, 300]},
    {"bad_words": ["path", "the", " ", "\n"]},
    {"stop": ["to"], "include_stop_str_in_output": True},
    {"skip_special_tokens": False, "ignore_eos": True},
]


def completion(server, **fields):
    status, answer = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 40} | fields)
    assert status == 200, answer
    return answer["choices"][0]["text"]


@pytest.mark.parametrize("fields", SAME, ids=lambda fields: next(iter(fields)))
def test_a_field_means_what_it_means_offline_and_changes_the_text(server, offline, fields):
    _, *others = fields
    without = {"max_tokens": 40} | {other: fields[other] for other in others}
    text = completion(server, **fields)
    assert text == offline.text(PROMPT, **{"max_tokens": 40} | fields) != offline.text(PROMPT, **without)


def test_a_bias_has_texts_as_keys(server, offline):
    assert completion(server, logit_bias={"300": 100}, max_tokens=3) == offline.text(
        PROMPT, logit_bias={300: 100}, max_tokens=3
    )


FORMS = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}},
        {"json": SCHEMA},
    ),
    ({"structured_outputs": COMPACT}, COMPACT),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choice": ["yes", "no"]}),
    ({"structured_outputs": {"regex": "[a-c]{4}"}}, {"regex": "[a-c]{4}"}),
    ({"response_format": {"type": "json_object"}}, {"json_object": True}),
]


@pytest.mark.parametrize(("fields", "own"), FORMS)
def test_a_text_has_the_form_that_was_asked_for(server, offline, fields, own):
    wanted = offline.text(PROMPT, max_tokens=64, structured_outputs=StructuredOutputsParams(**own))
    assert completion(server, max_tokens=64, **fields) == wanted
    if own == COMPACT:  # with spaces, the bundled model writes them to the end
        found = json.loads(wanted)
        assert isinstance(found["ok"], bool) and found["kind"] in ("a", "bc") and len(found) == 2


def test_a_text_without_a_form_is_free(server, offline):
    assert completion(server, response_format={"type": "text"}) == offline.text(PROMPT, max_tokens=40)
