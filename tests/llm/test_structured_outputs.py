"""Structured outputs: every text follows what was asked for, and requests beside them are unharmed."""

from __future__ import annotations

import builtins
import json
import random
import re
from dataclasses import replace

import pytest
import torch
from served import IDS, TEXTS, TOKENIZER, drafting_always, params, texts
from tokenizers_of_all_kinds import KINDS, tokenizer_of

from roseinfer.llm.grammar import Grammars
from roseinfer.llm.llm import LLM
from roseinfer.llm.vocabulary import Vocabulary
from roseinfer.models import GPT2, load_model, load_tokenizer
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
OF_WORDS = "wordpiece", "none"
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
    return drafting_always(LLM(tiny, tokenizer="tiny", **sizes | WAYS[request.param]))


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
        # What llguidance finds at the first token.
        ({"json": {"$ref": "#"}}, "structured_outputs cannot be followed: there is no text that follows it$"),
        ({"regex": r"[^\s\S]"}, "structured_outputs cannot be followed: there is no text that follows it$"),
        ({"grammar": "start: start"}, "structured_outputs cannot be followed: there is no text that follows it$"),
        # What never reaches it, and what is too long for the stack that it has.
        ({"choice": ["\ud800"]}, "structured_outputs cannot be followed: .*surrogates not allowed$"),
        ({"regex": "\ud800"}, "structured_outputs cannot be followed: .*surrogates not allowed$"),
        (
            {"regex": "a" * 300_001},
            "structured_outputs cannot be followed: regex has 300,001 characters, allowed: at most 300,000",
        ),
    ],
    ids=["type", "reference", "regex", "grammar", "itself", "nothing", "start", "surrogate", "in a regex", "long"],
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
        ({"json": {"enum": {1}}}, "json must be a JSON schema, got a value that is not JSON .*set"),
        ({"json": {"const": float("nan")}}, "json must be a JSON schema, got a value that is not JSON .*nan"),
        ({"json": '{"a":' * 100_000}, "json must be a JSON schema, got a text that is not JSON .*recursion"),
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
    with pytest.raises(ValueError, match="^structured_outputs cannot be followed: ") as refused:
        Grammars(Vocabulary(TOKENIZER), 2048, (0,)).grammar(StructuredOutputsParams(**wanted))
    assert len(str(refused.value)) < 500 and "<" not in str(refused.value)  # nothing of the library's own state


def test_a_long_chain_of_references_does_not_end_the_process():
    """llguidance follows it by recursion, and a thread's stack has a few megabytes."""
    rules = [f"r{i}: r{i + 1}" for i in range(20_000)]
    links = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(8_000)} | {"a8000": {"type": "boolean"}}
    grammars = Grammars(Vocabulary(TOKENIZER), 2048, (0,))
    for wanted in (
        StructuredOutputsParams(grammar="\n".join(["start: r0", *rules, 'r20000: "true"'])),
        StructuredOutputsParams(json={"$ref": "#/$defs/a0", "$defs": links}),
    ):
        grammar = grammars.grammar(wanted).copy()
        assert grammar([], torch.zeros(2048))[TOKENIZER.encode("true").ids[0]] == 0


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize(
    "wanted",
    [
        {"choice": [f"label {i}" for i in range(5_000)]},
        {"json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}}},
        {"json": {"anyOf": [{"type": "object", "properties": {f"p{i}": {}}} for i in range(2_100)]}},
    ],
    ids=["choice", "properties", "anyOf"],
)
def test_a_text_follows_a_large_grammar_or_says_why_not(tiny, wanted, async_scheduling):
    """llguidance has limits that count as late as the second token."""
    llm = LLM(tiny, tokenizer="tiny", max_num_seqs=3, num_kvcache_blocks=24, async_scheduling=async_scheduling)
    beside, alone = params(), llm.generate(TEXTS[1], params())[0].outputs
    outputs = [output.outputs[0] for output in llm.generate(TEXTS[:2], [asked(**wanted), beside])]
    if "choice" in wanted:
        assert outputs[0].text in wanted["choice"] and outputs[0].finish_reason == "stop"
    else:
        assert outputs[0].finish_reason == "error"
        assert re.fullmatch(
            "structured_outputs failed: ValueError: Parser Error: Current row has .*; max is .*", outputs[0].error
        )
    assert outputs[1:] == alone


def test_a_grammar_that_gave_up_on_one_text_follows_another():
    """As after a draft that did not hold: llguidance's error would stay."""
    few, many = '"a" "b" "c"', " | ".join(f'"x{i}"' for i in range(2_100))
    grammar = Grammars(Vocabulary(TOKENIZER), 2048, (0,)).grammar(
        StructuredOutputsParams(grammar=f'start: {few} | "d" ({many})')
    )
    a, b, d = (TOKENIZER.token_to_id(letter) for letter in "abd")
    for _ in range(2):
        assert grammar([a], torch.zeros(2048)).isfinite().nonzero().tolist()[0] == [b]
        with pytest.raises(ValueError, match="Current row has 2.* items"):
            grammar([d], torch.zeros(2048))


@pytest.mark.parametrize("drawn", [{}, {"temperature": 1.5, "seed": 3}], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    "wanted",
    [{"choice": ["yes", "no"]}, {"json": {"type": "boolean"}}, {"regex": "[ab]{3}"}, {"json": SCHEMA, **COMPACT}],
    ids=["choice", "boolean", "regex", "object"],
)
def test_a_complete_text_ends_before_min_tokens(any_llm, wanted, drawn):
    """As in vLLM: the model may choose no other token than its end token."""
    alone, least = (replace(asked(**wanted), max_tokens=130, min_tokens=least, **drawn) for least in (0, 125))
    [output], [expected] = any_llm.generate(TEXTS[0], least), any_llm.generate(TEXTS[0], alone)
    assert output.outputs[0].finish_reason == "stop" and output.outputs == expected.outputs


def test_min_tokens_holds_while_the_text_may_go_on(llm):
    text = asked(regex="a+")
    assert len(llm.generate(TEXTS[0], replace(text, min_tokens=60))[0].outputs[0].token_ids) >= 60


def test_what_left_no_token_is_named_as_the_request_named_it(llm):
    wanted = replace(asked(choice=["yes", "no"]), bad_words=["yes", "no", "n", "y"], min_tokens=2)
    [sample] = llm.generate(TEXTS[0], wanted)[0].outputs
    assert sample.finish_reason == "error"
    assert sample.error.startswith("min_tokens, bad_words, structured_outputs left no token to choose: ")


def test_with_ignore_eos_only_end_tokens_follow_a_complete_text(any_llm):
    wanted = replace(asked(choice=["yes", "no"]), ignore_eos=True, max_tokens=20)
    [sample] = any_llm.generate(TEXTS[0], wanted)[0].outputs
    assert sample.text in ("yes", "no") and sample.finish_reason == "length" and len(sample.token_ids) == 20


def cut(model: GPT2, num_rows: int) -> GPT2:
    """The model with fewer rows in its vocabulary, or with more, which are copies."""
    own = model.config.vocab_size
    rows = torch.arange(num_rows) % own
    other = GPT2(replace(model.config, vocab_size=num_rows))
    weights = model.state_dict().items()
    other.load_state_dict({name: value[rows] if len(value) == own else value for name, value in weights})
    return other


@pytest.mark.parametrize("more", [-40, -1, 1, 100], ids=lambda more: f"{more:+} rows")
def test_the_tokenizer_may_have_more_tokens_than_the_model_and_fewer(more):
    """Tokens that were added to it, such as one for padding; and rows that pad a model's vocabulary."""
    llm = LLM(cut(load_model("tiny"), 2048 + more), tokenizer="tiny", num_kvcache_blocks=24, max_num_seqs=3)
    wanted = [asked(choice=["yes", "no"]), asked(json=SCHEMA, **COMPACT), asked(regex="[a-z]{3,9}")]
    outputs = llm.generate([IDS[0]] * 3, [replace(each, temperature=1.0, seed=2) for each in wanted])
    one, json_text, word = texts(outputs)
    assert one in ("yes", "no") and is_sound(json_text) and re.fullmatch("[a-z]{3,9}", word)


def test_an_added_token_is_never_written(tiny):
    added = load_tokenizer("tiny")
    added.add_special_tokens(["<pad>"])
    llm = LLM(tiny, tokenizer=added, num_kvcache_blocks=24, max_num_seqs=3)
    assert texts(llm.generate(TEXTS[0], asked(choice=["yes", "no"]))) in (["yes"], ["no"])


def test_a_model_without_an_end_token_or_llguidance_says_so(tiny, monkeypatch):
    with pytest.raises(ValueError, match="^structured_outputs need a model with an end token, and this one has none$"):
        Grammars(Vocabulary(TOKENIZER), 2048, ())
    real = builtins.__import__

    def without(name, *rest, **others):
        if name == "llguidance":
            raise ModuleNotFoundError("No module named 'llguidance'", name=name)
        return real(name, *rest, **others)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"llguidance, which is not installed: `pip install '\.\[structured\]'`$"):
        Grammars(Vocabulary(TOKENIZER), 2048, (0,))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_WORDS])
@pytest.mark.parametrize("regex", ["a( new)? day", "(new| a)+", " day a?"])
def test_a_text_follows_its_grammar_whatever_the_kind_of_tokenizer(kind, regex):
    """Whichever of the allowed tokens come. They are read in the middle of a text, where SentencePiece keeps spaces."""
    tokenizer, rng = tokenizer_of(kind), random.Random(0)
    vocabulary, end = Vocabulary(tokenizer), tokenizer.get_vocab_size()
    grammar = Grammars(vocabulary, end + 1, (end,)).grammar(StructuredOutputsParams(regex=regex))
    before = next(i for i in range(end) if vocabulary.bytes_of(i) == vocabulary.bytes_of(tokenizer.token_to_id("a")))
    ended = 0
    for _ in range(20):
        token_ids: list[int] = []
        text = vocabulary.detokenizer([before])
        while len(token_ids) < 40:
            allowed = grammar(token_ids, torch.zeros(end + 1)).isfinite().nonzero().flatten().tolist()
            if (token := rng.choice(allowed)) == end:
                text.finish()
                assert re.fullmatch(regex, text.text), (text.text, token_ids)
                ended += 1
                break
            token_ids.append(token)
            text.add(token)
    assert ended


@pytest.mark.parametrize("kind", OF_WORDS)
def test_a_tokenizer_of_whole_words_is_refused(kind):
    with pytest.raises(ValueError, match="^structured_outputs need a tokenizer that spells any text, this one has no"):
        Grammars(Vocabulary(tokenizer_of(kind)), 50, (0,))


def test_a_grammar_walks_back_where_a_text_parts_from_it():
    """As after a draft that did not hold, a preemption, or a step that was dropped."""
    grammar = Grammars(Vocabulary(TOKENIZER), 2048, (0,)).grammar(StructuredOutputsParams(regex="[ab]c[de]f"))
    ids = {letter: TOKENIZER.token_to_id(letter) for letter in "abcdef"}

    def allowed(text: str) -> set[str]:
        row = grammar([ids[letter] for letter in text], torch.zeros(2048))
        return {letter for letter, token in ids.items() if row[token] == 0}

    assert allowed("") == {"a", "b"} and allowed("ac") == {"d", "e"} and allowed("ace") == {"f"}
    assert allowed("acd") == {"f"} and allowed("b") == {"c"} and allowed("") == {"a", "b"}
    with pytest.raises(ValueError, match="^the text does not follow it$"):  # of a row that is not used
        allowed("ba")
    assert allowed("bc") == {"d", "e"}
    other = grammar.copy()
    assert other([ids["a"]], torch.zeros(2048)).isfinite().any() and allowed("bce") == {"f"}


def test_a_choice_may_have_any_character(llm):
    for text in ["a\x7fb", "\x00", "\x85", "\u2028", "\U0001f600", "\"\\/'"]:
        [output] = llm.generate(TEXTS[0], asked(choice=[text]))
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == (text, "stop")
