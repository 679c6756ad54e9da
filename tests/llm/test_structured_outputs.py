"""Structured outputs: every text follows what was asked for, and requests beside them are unharmed."""

from __future__ import annotations

import builtins
import json
import re
from dataclasses import replace

import pytest
from served import IDS, TEXTS, TOKENIZER, params, texts

from roseinfer.llm.grammar import Grammars
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.sampling_params import SamplingParams
from roseinfer.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["file", "folder"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "size", "kind", "tags"],
    "additionalProperties": False,
}
COMPACT = {"disable_any_whitespace": True}
WAYS = {
    "roomy": {},
    "a small pool, chunks": {"max_num_batched_tokens": 16, "num_kvcache_blocks": 9},
    "asynchronous": {"async_scheduling": True},
    "drafts": {"speculative": {"method": "ngram", "num_tokens": 4, "prompt_lookup_min": 1}},
}


def is_sound(text: str) -> bool:
    found = json.loads(text)
    assert list(found) == ["name", "size", "kind", "tags"] and len(found["name"]) <= 12
    assert 0 <= found["size"] <= 99 and found["kind"] in ("file", "folder")
    return len(found["tags"]) <= 3 and all(isinstance(tag, bool) for tag in found["tags"])


def asked(**wanted) -> SamplingParams:
    return SamplingParams(max_tokens=120, structured_outputs=StructuredOutputsParams(**wanted))


@pytest.fixture(scope="module", params=WAYS)
def any_llm(request: pytest.FixtureRequest, tiny: GPT2) -> LLM:
    sizes = {"max_num_seqs": 8, "block_size": 16, "num_kvcache_blocks": 64}
    llm = LLM(tiny, tokenizer="tiny", **sizes | WAYS[request.param])
    if llm.engine.speculation:
        llm.engine.speculation.payoff.is_worth = lambda num_seqs, num_drafts: True
    return llm


@pytest.mark.parametrize(
    "drawn", [{}, {"temperature": 1.0, "seed": 4}, {"temperature": 3.0, "seed": 5, "n": 3}], ids=str
)
def test_texts_follow_and_requests_beside_them_are_unharmed(any_llm, drawn):
    beside = [params(60), params(60, temperature=0.9, seed=3)]
    alone = [any_llm.generate(ids, p)[0].outputs for ids, p in zip(IDS[:2], beside, strict=True)]
    wanted = [
        replace(asked(json=SCHEMA, **COMPACT), **drawn),
        replace(asked(regex=r"[A-Z][a-z]{3,8}( [a-z]{2,5}){2}\."), **drawn),
        replace(asked(choice=["yes", 'say "no"', "perhaps é"]), **drawn),
        replace(asked(grammar='start: "f(" /[0-9]+/ ("," /[0-9]{1,3}/){2} ")"'), **drawn),
    ]
    outputs = any_llm.generate([IDS[0], *IDS, IDS[1]], [beside[0], *wanted, beside[1]])
    assert [outputs[0].outputs, outputs[-1].outputs] == alone
    schema, regex, choice, grammar = ([sample.text for sample in output.outputs] for output in outputs[1:-1])
    for output in outputs[1:-1]:
        assert {sample.finish_reason for sample in output.outputs} <= {"stop", "length"}
    complete = [s.text for s in outputs[1].outputs if s.finish_reason == "stop"]
    assert all(map(is_sound, complete)) and complete
    assert all(re.fullmatch(r"[A-Z][a-z]{3,8}( [a-z]{2,5}){2}\.", text) for text in regex)
    assert {*choice} <= {"yes", 'say "no"', "perhaps é"}
    assert all(re.match(r"f\([0-9]+", text) for text in grammar)


def test_any_json_object(llm):
    [output] = llm.generate(
        TEXTS[0], replace(asked(json_object=True, **COMPACT), temperature=1.0, seed=1, max_tokens=200)
    )
    assert output.outputs[0].text.startswith("{")
    if output.outputs[0].finish_reason == "stop":
        assert isinstance(json.loads(output.outputs[0].text), dict)


def test_a_schema_may_be_a_text(llm):
    as_text, as_dict = (asked(json=schema, **COMPACT) for schema in (json.dumps(SCHEMA), SCHEMA))
    assert as_text == as_dict
    assert is_sound(llm.generate(TEXTS[0], as_text)[0].outputs[0].text)


def test_tokens_are_the_likeliest_ones_that_follow(llm, tiny):
    """The mask is llguidance's own, step by step, over logits without any cache."""
    from llguidance import LLMatcher, LLTokenizer

    from roseinfer.reference import reference_logits

    [output] = llm.generate(IDS[0], asked(json=SCHEMA, **COMPACT))
    matcher = LLMatcher(
        LLTokenizer(TOKENIZER.to_str(), n_vocab=2048, eos_token=0),
        LLMatcher.grammar_from_json_schema(SCHEMA, {"whitespace_flexible": False}),
    )
    text = list(IDS[0])
    for token in output.outputs[0].token_ids:
        allowed = [bool(bias) for bias in matcher.compute_logit_bias()]
        row = reference_logits(tiny, text)[-1]
        assert token == max((i for i in range(2048) if allowed[i]), key=lambda i: float(row[i]))
        assert matcher.consume_token(token)
        text.append(token)


def test_it_goes_with_other_changes(llm):
    wanted = replace(asked(choice=["yes", "no", "perhaps"]), bad_words=["yes", "perhaps"], repetition_penalty=1.2)
    assert texts(llm.generate(TEXTS[0], wanted)) == ["no"]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"json": {"type": 5}}, "structured_outputs cannot be followed: "),
        (
            {"json": {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}},
            "structured_outputs cannot be followed: ",
        ),
        ({"regex": "(a"}, "structured_outputs cannot be followed: "),
        ({"grammar": "start: nowhere"}, "structured_outputs cannot be followed: "),
    ],
    ids=["type", "reference", "regex", "grammar"],
)
def test_what_cannot_be_followed_is_refused_before_any_runs(llm, monkeypatch, wanted, message):
    monkeypatch.setattr(llm.engine, "step", lambda: pytest.fail("nothing may run"))
    with pytest.raises(ValueError, match=rf"^prompts\[1\]: {message}"):
        llm.generate(TEXTS[:2], [params(), asked(**wanted)])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "structured outputs need exactly one of json, regex, choice, grammar, json_object, got none"),
        ({"regex": "a", "choice": ["b"]}, "structured outputs need exactly one of .* got regex and choice"),
        ({"json": "{"}, "json must be a JSON schema, got a text that is not JSON .*: '{'"),
        ({"json": [1]}, r"json must be a JSON schema, a dict or the text of an object, got \[1\]"),
        ({"regex": ""}, "regex must be a text that is not empty, got ''"),
        ({"choice": "ab"}, "choice must be a list of texts, none of them empty, got 'ab'"),
        ({"json_object": 1}, "json_object must be True or False, got 1"),
        (
            {"json_schema": {}},
            r"StructuredOutputsParams has no argument 'json_schema' \(nearest: json_object\), allowed: json, ",
        ),
    ],
    ids=str,
)
def test_exactly_one_form_is_asked_for(wanted, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        StructuredOutputsParams(**wanted)


def nested(depth: int) -> dict:
    schema: dict = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


@pytest.mark.parametrize(
    "wanted", [{"json": nested(200)}, {"regex": "(?=a)b"}, {"regex": r"(a)\1"}], ids=["deep", "look", "back"]
)
def test_what_could_take_without_end_is_refused(wanted):
    with pytest.raises(ValueError, match="^structured_outputs cannot be followed: "):
        Grammars(TOKENIZER, 2048, (0,)).grammar(StructuredOutputsParams(**wanted))


def test_a_model_without_an_end_token_or_llguidance_says_so(tiny, monkeypatch):
    with pytest.raises(ValueError, match="^structured_outputs need a model with an end token, and this one has none$"):
        Grammars(TOKENIZER, 2048, ())
    real = builtins.__import__

    def without(name, *rest, **others):
        if name == "llguidance":
            raise ModuleNotFoundError("No module named 'llguidance'", name=name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ValueError, match=r"llguidance, which is not installed: `pip install 'roseinfer\[structured\]'`$"
    ):
        Grammars(TOKENIZER, 2048, (0,))


def test_a_grammar_walks_back_where_a_text_parts_from_it():
    """As after a draft that did not hold, a preemption, or a step that was dropped."""
    import torch

    grammar = Grammars(TOKENIZER, 2048, (0,)).grammar(StructuredOutputsParams(regex="[ab]c[de]f"))
    ids = {letter: TOKENIZER.token_to_id(letter) for letter in "abcdef"}

    def allowed(text: str) -> set[str]:
        row = grammar([ids[letter] for letter in text], torch.zeros(2048))
        return {letter for letter, token in ids.items() if row[token] == 0}

    assert allowed("") == {"a", "b"} and allowed("ac") == {"d", "e"} and allowed("ace") == {"f"}
    assert allowed("acd") == {"f"} and allowed("b") == {"c"} and allowed("") == {"a", "b"}
    assert allowed("ba") == {*"abcdef"}  # such a row is not used
    assert allowed("bc") == {"d", "e"}
    other = grammar.copy()
    assert other([ids["a"]], torch.zeros(2048)).isfinite().any() and allowed("bce") == {"f"}
