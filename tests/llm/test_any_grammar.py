"""Any grammar beside any others, on every way through the engine: a text that ends with "stop" follows what was asked
for; every other one says why it ended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import validate
from served import IDS, drafting_always

from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.sampling_params import SamplingParams
from roseinfer.structured_outputs import StructuredOutputsParams

pytestmark = pytest.mark.slow

WAYS = {
    "roomy": {},
    "a small pool, chunks": {"max_num_batched_tokens": 16, "num_kvcache_blocks": 11},
    "asynchronous": {"async_scheduling": True},
    "drafts": {"speculative": {"method": "ngram", "num_tokens": 4, "prompt_lookup_min": 1}},
    "drafts, a small pool": {
        "speculative": {"method": "ngram", "num_tokens": 4, "prompt_lookup_min": 1},
        "num_kvcache_blocks": 11,
    },
}
LETTERS = st.text("abé \n\"'\\|/[]1", min_size=1, max_size=6)
# Too much for llguidance once a token is there: the library cannot know before.
TOO_MANY = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(600)}}


@dataclass(frozen=True)
class Asked:
    """follows: whether a whole text does. never: it ends with an error, whatever the model says."""

    wanted: StructuredOutputsParams
    follows: Callable[[str], object]
    never: bool = False


def choice(texts: list[str]) -> Asked:
    return Asked(StructuredOutputsParams(choice=texts), {*texts}.__contains__)


def regex(pattern: str) -> Asked:
    return Asked(StructuredOutputsParams(regex=pattern), re.compile(pattern, re.DOTALL).fullmatch)


def schema(wanted: dict) -> Asked:
    def follows(text: str) -> bool:
        validate(json.loads(text), wanted)
        return True

    return Asked(StructuredOutputsParams(json=wanted, disable_any_whitespace=True), follows)


def joined(parts: list[str]) -> str:
    return "".join(parts)


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "[a-f]", r"\d", " ", r"\.", "xy", "é"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(joined),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.builds("({}){}".format, inner, st.sampled_from(["?", "{1,3}", "{2}", "+"])),
    ),
    max_leaves=6,
)
LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(
        lambda a, b: {"type": "integer", "minimum": a, "maximum": a + b}, st.integers(-9, 99), st.integers(0, 99)
    ),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 5)),
    st.lists(LETTERS, min_size=1, max_size=4, unique=True).map(lambda texts: {"enum": texts}),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda kinds: {"anyOf": kinds}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda own: {
                "type": "object",
                "properties": own,
                "required": sorted(own)[:1],
                "additionalProperties": False,
            }
        ),
    ),
    max_leaves=4,
)
ASKED = st.one_of(
    st.lists(LETTERS, min_size=1, max_size=6).map(choice),
    st.just(choice([f"label {i}" for i in range(3_000)])),
    PATTERNS.map(regex),
    SCHEMAS.map(schema),
    st.just(replace(schema(TOO_MANY), never=True)),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Asked, SamplingParams]:
    asked = draw(ASKED)
    most = draw(st.integers(4, 40))
    temperature = draw(st.sampled_from([0.0, 0.7, 5.0]))
    params = SamplingParams(
        max_tokens=most,
        temperature=temperature,
        n=draw(st.integers(1, 2)) if temperature else 1,
        seed=draw(st.integers(0, 99)),
        top_k=draw(st.sampled_from([0, 0, 20])),
        min_tokens=draw(st.sampled_from([0, 0, most])),
        ignore_eos=draw(st.sampled_from([False, False, True])),
        bad_words=draw(st.sampled_from([(), (), ("a",), ("1", "true")])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.5, 1e-300, 1e300])),
        logit_bias=draw(st.sampled_from([None, None, {0: 100.0}, {0: -100.0, 65: 1e308}])),
        logprobs=draw(st.sampled_from([None, 2])),
        structured_outputs=asked.wanted,
    )
    return asked, params


@pytest.fixture(scope="module", params=WAYS)
def any_llm(request: pytest.FixtureRequest, tiny: GPT2) -> LLM:
    sizes = {"max_num_seqs": 6, "block_size": 8, "num_kvcache_blocks": 96}
    return drafting_always(LLM(tiny, tokenizer="tiny", **sizes | WAYS[request.param]))


def check_batch(llm: LLM, batch: list[tuple[Asked, SamplingParams]], aborts: set[int]) -> None:
    """Run a batch, some of it aborted after its first token, and check every text."""
    prompts = [IDS[i % len(IDS)] for i in range(len(batch))]
    outputs = {}
    for output in llm.stream(prompts, [params for _, params in batch]):
        outputs[output.request_id] = output
        if int(output.request_id) % len(batch) in aborts and not output.finished:
            llm.abort(output.request_id)
    llm.engine.blocks.check()
    assert llm.engine.blocks.num_free == llm.engine.blocks.num_blocks and not llm.engine.has_work
    first = min(map(int, outputs))
    assert len(outputs) == len(batch)
    for name, output in outputs.items():
        asked, params = batch[int(name) - first]
        for sample in output.outputs:
            reason = sample.finish_reason
            if reason == "stop":
                assert not asked.never and asked.follows(sample.text), (asked.wanted, sample.text)
            elif reason == "error":
                assert asked.never or params.bad_words, (asked.wanted, params, sample)
                assert "structured_outputs" in sample.error and "logits_processors" not in sample.error
            else:
                assert (reason == "length" and not asked.never) or (reason == "abort" and aborts)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests(), min_size=1, max_size=5), st.sets(st.integers(0, 4), max_size=1))
def test_a_text_follows_or_says_why_not(any_llm, batch, aborts):
    check_batch(any_llm, batch, aborts)
