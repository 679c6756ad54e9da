"""Requests without params are sampled as generation_config.json says; what the engine does not have is named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from served import TEXTS, TOKENIZER

from roseinfer.llm.llm import LLM
from roseinfer.llm.loading import default_params
from roseinfer.models import ModelLoadError
from roseinfer.sequence import SamplingParams


def write(folder: Path, **settings: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **settings}))


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20}, {"temperature": 0.6, "top_p": 0.9, "top_k": 20}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": None, "top_k": None}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.0}, {}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9, "top_k": 20}, {}),
        ({"do_sample": False, "max_new_tokens": 40}, {"max_tokens": 40}),
        ({"top_p": 0.9, "max_length": 20}, {"top_p": 0.9}),
        (
            {"do_sample": True, "min_p": 0.1, "repetition_penalty": 1.05},
            {"temperature": 1.0, "min_p": 0.1, "repetition_penalty": 1.05},
        ),
        ({"do_sample": False, "min_p": 0.1, "repetition_penalty": 1.05}, {"repetition_penalty": 1.05}),
        ({"repetition_penalty": 1.0, "num_beams": 1, "suppress_tokens": [], "min_p": None, "use_cache": True}, {}),
    ],
    ids=str,
)
def test_the_files_settings_are_the_default_params(folder, settings, wanted):
    write(folder, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert default_params(str(folder)) == SamplingParams(**wanted)


def test_requests_without_params_have_them_and_others_have_their_own(folder):
    write(folder, do_sample=True, temperature=5.0, top_k=7, max_new_tokens=6)
    llm = LLM(str(folder), device="cpu", num_kvcache_blocks=16)
    defaults = llm.get_default_sampling_params()
    assert defaults == SamplingParams(max_tokens=6, temperature=5.0, top_k=7)
    drawn = {tuple(output.outputs[0].token_ids) for output in llm.generate(TEXTS[:1] * 8)}
    assert len(drawn) > 1 and {len(tokens) for tokens in drawn} == {6}
    assert len({tuple(output.outputs[0].token_ids) for output in llm.generate(TEXTS[:1] * 8, SamplingParams())}) == 1
    [*_, last] = llm.stream(TEXTS[0])
    assert len(last.outputs[0].token_ids) == 6


@pytest.mark.parametrize("model", ["tiny", "random:tiny-llama", None], ids=str)
def test_the_bundled_model_random_weights_and_a_model_are_greedy(model, tiny):
    llm = LLM(model or tiny, device=None, tokenizer=TOKENIZER, num_kvcache_blocks=4)
    assert llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no_repeat_ngram_size", 3),
        ("min_new_tokens", 3),
        ("num_beams", 4),
        ("suppress_tokens", [1, 2]),
        ("stop_strings", ["\n"]),
    ],
)
def test_what_the_engine_does_not_have_is_named_once(folder, key, value):
    write(folder, **{key: value})
    with pytest.warns(UserWarning) as warned:
        llm = LLM(str(folder), device="cpu", num_kvcache_blocks=4)
        llm.generate(TEXTS[:2])
        llm.generate(TEXTS[0])
    [message] = [str(warning.message) for warning in warned if "generation_config" in str(warning.message)]
    assert message == f"{folder}: generation_config.json: {key}={value!r} is not applied, the engine does not have it"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_sample": True, "temperature": -1}, r"temperature must be a number >= 0 \(0 is greedy\), got -1"),
        ({"do_sample": True, "top_p": 0}, "top_p must be a number above 0 and at most 1"),
        ({"do_sample": True, "top_k": "many"}, "top_k must be an integer"),
        ({"max_new_tokens": 0}, "max_tokens must be an integer >= 1, got 0"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_error(folder, settings, message):
    write(folder, **settings)
    with pytest.raises(ModelLoadError, match=f"generation_config.json: {message}"):
        LLM(str(folder), device="cpu", num_kvcache_blocks=4)
