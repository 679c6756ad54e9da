"""Wrong settings of speculative decoding: one line each, before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from served import copied

from roseinfer.engine.engine import Engine
from roseinfer.engine.speculation.settings import SpeculativeConfig
from roseinfer.llm.llm import LLM
from roseinfer.models import random_model
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.simulator.replica import EngineSetting

KEYS = "method, num_tokens, prompt_lookup_max, prompt_lookup_min, model, quantization"


@pytest.mark.parametrize(
    ("speculative", "message"),
    [
        ("ngram", "speculative must be a dict such as {'method': 'ngram', 'num_tokens': 4}, got 'ngram'"),
        ({}, "speculative needs a 'method', one of ngram, draft_model, got {}"),
        (
            {"method": "ngrams"},
            "speculative['method']: unknown value 'ngrams' (nearest: ngram), allowed: ngram, draft_model",
        ),
        ({"method": 3}, "speculative['method'] must be one of ngram, draft_model, got 3"),
        (
            {"method": "ngram", "num_token": 4},
            f"speculative has no key 'num_token' (nearest: num_tokens), allowed: {KEYS}",
        ),
        (
            {"method": "ngram", "num_tokens": 0},
            "speculative['num_tokens'] must be an integer of at least 1, got 0",
        ),
        (
            {"method": "ngram", "num_tokens": 64},
            "speculative['num_tokens']=64 drafts and the token before them are more than a step of "
            "max_num_batched_tokens=64 allows: at most 63",
        ),
        (
            {"method": "ngram", "num_tokens": 40},
            "speculative['num_tokens']=40 drafts and the token before them are more than max_model_len=40 allows: at "
            "most 39",
        ),
        (
            {"method": "draft_model"},
            "speculative needs a 'model' for method='draft_model': a spec such as 'tiny', or a Model",
        ),
        (
            {"method": "ngram", "model": "tiny"},
            "speculative['model']='tiny' is for method='draft_model', got 'ngram'",
        ),
        (
            {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3},
            "speculative['prompt_lookup_max'] must be an integer of at least 3, got 2",
        ),
        (
            {"method": "draft_model", "model": 7},
            "model must be a Model or a spec such as 'tiny' or 'random:gpt2', got 7",
        ),
        (
            {"method": "draft_model", "model": "random:tiny-llama"},
            "speculative['model'] has a vocabulary of 512 tokens, allowed: the 2,048 of the model that it drafts for",
        ),
    ],
    ids=str,
)
def test_an_llm_refuses(speculative, message):
    with pytest.raises(ValueError) as caught:
        LLM("tiny", speculative=speculative, max_num_batched_tokens=64, max_model_len=40, num_kvcache_blocks=4)
    assert str(caught.value) == message


def test_async_scheduling_and_drafts_exclude_each_other():
    with pytest.raises(ValueError) as caught:
        LLM("tiny", speculative={"method": "ngram"}, async_scheduling=True)
    assert str(caught.value).startswith("async_scheduling=True and speculative exclude each other: ")


def test_a_draft_model_with_too_few_positions(small):
    short = random_model(replace(small.config, max_model_len=32))
    draft = {"method": "draft_model", "model": short}
    with pytest.raises(ValueError) as caught:
        LLM(small, speculative=draft, num_kvcache_blocks=4)
    longest = small.config.max_model_len
    assert str(caught.value) == (f"speculative['model'] has 32 positions, allowed: at least max_model_len={longest}")
    assert LLM(small, speculative=draft, num_kvcache_blocks=4, max_model_len=32).max_model_len == 32


def test_a_draft_model_with_other_tokens(tmp_path):
    tokens = copied(tmp_path) / "tokenizer.json"
    state = json.loads(tokens.read_text())
    first, second = list(state["model"]["vocab"])[300:302]
    vocabulary = state["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    tokens.write_text(json.dumps(state))
    with pytest.raises(ValueError, match="has another vocabulary .*: the tokens of their tokenizers differ$"):
        LLM("tiny", speculative={"method": "draft_model", "model": str(tmp_path)}, num_kvcache_blocks=4)


def test_an_engine_takes_models_alone(small):
    with pytest.raises(ValueError, match="must be a Model for an Engine: roseinfer.LLM loads specs"):
        Engine(small, num_blocks=4, speculative={"method": "draft_model", "model": "tiny"})


def test_a_model_has_a_quantization_of_its_own(small):
    draft = {"method": "draft_model", "model": small, "quantization": "int8"}
    with pytest.raises(ValueError, match="quantization='int8' is for a spec: a Model has its own"):
        LLM(small, speculative=draft, num_kvcache_blocks=4)


def test_a_simulated_engine_has_no_drafts():
    with pytest.raises(ValueError, match="EngineSetting has no argument 'speculative'"):
        EngineSetting(num_blocks=4, speculative={"method": "ngram"})


def test_a_planned_engine_checks_the_draft_model_s_spec(small):
    with pytest.raises(ValueError, match="must be a spec such as 'tiny' for an engine that is not there yet"):
        PlannedEngine(model="tiny", num_blocks=4, speculative={"method": "draft_model", "model": small})
    wrong = {"method": "draft_model", "model": "random:gpt2"}
    with pytest.raises(ValueError, match="has a vocabulary of 50,257 tokens, allowed: the 2,048"):
        PlannedEngine(model="tiny", num_blocks=4, speculative=wrong).sizes()


def test_lookup_sizes_follow_each_other():
    sizes = [(None, None), (None, 7), (1, None), (9, 3)]
    found = [
        SpeculativeConfig(method="ngram", prompt_lookup_max=most, prompt_lookup_min=least).lookup_sizes
        for most, least in sizes
    ]
    assert found == [(4, 2), (7, 7), (1, 1), (9, 3)]
