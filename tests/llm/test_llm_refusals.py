"""LLM: what it refuses, in one error that says why, and goes on."""

from __future__ import annotations

import pytest
from served import IDS, TEXTS, params, texts

from roseinfer.llm.llm import LLM
from roseinfer.models import load_tokenizer


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("", r"a prompt must have at least one token, got the text ''"),
        ([TEXTS[0], ""], r"prompts\[1\]: a prompt must have at least one token, got the text ''"),
        ([[]], r"prompts\[0\]: token_ids must be a non-empty list of token ids"),
        ([IDS[0], [5, -1]], r"prompts\[1\]: token_ids must be .* got \[5, -1\]"),
        ([IDS[0], [5, 2048]], r"prompts\[1\]: token id 2048 is out of range: vocab_size=2048"),
        ([3.0], r"prompts\[0\]: token_ids must be .* got 3.0"),
        (None, r"prompts must be a text, a list of token ids, a dict, or a list of them, got None"),
        (
            [IDS[0], [5] * 512],
            r"prompts\[1\]: prompt of 512 tokens leaves no room for a new one, allowed: at most 511 with max_m",
        ),
        ({"promt": "a"}, r"a prompt has unknown key 'promt' \(nearest: prompt\), allowed: prompt, prompt_token_ids"),
        (
            [{"prompt": None}],
            r"prompts\[0\]: a prompt that is a dict must have 'prompt' or 'prompt_token_ids', got {'prom",
        ),
        ({"prompt": 5}, r"prompt\['prompt'\] must be a text, got 5"),
        ({"prompt_token_ids": []}, "token_ids must be a non-empty list of token ids"),
        (
            {"prompt": "a", "multi_modal_data": {"image": 1}},
            "a prompt has unknown key 'multi_modal_data', allowed: prompt, prompt_token_ids",
        ),
        ([IDS[0], [5] * 400], r"prompts\[1\]: .* needs 26 blocks of 16 tokens, allowed: num_blocks=24"),
    ],
)
def test_a_request_that_cannot_run_is_refused_before_any_does(llm, monkeypatch, prompts, message):
    monkeypatch.setattr(llm.engine, "step", lambda: pytest.fail("nothing may run"))
    for call in (llm.generate, llm.stream):
        with pytest.raises(ValueError, match=f"^{message}"):
            call(prompts, params())
    monkeypatch.undo()
    assert texts(llm.generate(TEXTS[:1], params(2)))  # the engine goes on


@pytest.mark.parametrize("given", [[params()], "greedy", [params()] * 3, {"max_tokens": 3}])
def test_one_params_or_one_for_each(llm, given):
    with pytest.raises(ValueError, match="^sampling_params must be a SamplingParams or 2 of them, got "):
        llm.generate(TEXTS[:2], given)
    with pytest.raises(ValueError, match=r"^prompts\[1\]: params must be a SamplingParams, got 3"):
        llm.generate(TEXTS[:2], [params(), 3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be an integer of at least 1, got 0"),
        ({"max_num_batched_tokens": 32}, "max_num_batched_tokens=32 is less than a step of max_num_seqs=64 sequences"),
        ({"scheduling_policy": None}, "scheduling_policy must be one of fcfs, shortest, longest_output, packed, or"),
        ({"enable_prefix_caching": "no"}, "enable_prefix_caching must be True or False, got 'no'"),
        ({"max_seqs": 3}, r"LLM has no argument 'max_seqs' \(nearest: max_num_seqs\), allowed: model, tokenizer, "),
        ({"num_blocks": 3}, r"LLM has no argument 'num_blocks' \(nearest: num_kvcache_blocks\)"),
        ({"dtype": "int8"}, "dtype must be one of .*, got 'int8': 8-bit weights are quantization='int8'$"),
        ({"quantization": "awq"}, "quantization must be one of int8, int4, got 'awq'"),
        ({"dtype": "fp32"}, "dtype must be one of float32, float16, bfloat16, auto, got 'fp32'$"),
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"device": "cuda:77"}, "device='cuda:77': not on this machine, which has: cpu"),
        ({"max_model_len": 513}, "max_model_len=513 is more positions than the model has, allowed: at most 512"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer of at least 1, got 0"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"num_kvcache_blocks": 0}, "num_kvcache_blocks must be an integer of at least 1, got 0"),
        ({"kv_cache_memory_bytes": 1.5}, "kv_cache_memory_bytes must be an integer of at least 1, got 1.5"),
        (
            {"kv_cache_memory_bytes": 393_215},
            "kv_cache_memory_bytes gives the KV cache 393,215 bytes: one block of block_size=64 has 393,216",
        ),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be a number above 0 and at most 1, got 1.5"),
        ({"gpu_memory_utilization": 0.5}, "gpu_memory_utilization=0.5 is for a GPU, and the model is on 'cpu': give "),
        (
            {"num_kvcache_blocks": 3, "kv_cache_memory_bytes": 10**9},
            "num_kvcache_blocks and kv_cache_memory_bytes each size the KV cache: give one of them",
        ),
        ({"device": "gpu", "quantization": "int8"}, "device='gpu' is not a device"),
        ({"device": "meta", "quantization": "int8"}, "quantization='int8' runs on a CPU, and the model is on 'meta'"),
        ({"device": "meta", "quantization": "int4"}, "quantization='int4' runs on a CPU, and the model is on 'meta'"),
        (
            {"pipeline_parallel_size": 2},
            "LLM does not take pipeline_parallel_size, as vLLM's does: a model is split inside its layers",
        ),
        ({"enforce_eager": 1}, "enforce_eager must be True or False, got 1"),
        ({"seed": -1}, "seed must be an integer from 0 to 9223372036854775807, got -1"),
        ({"seed": 2**63}, "seed must be an integer from 0 to 9223372036854775807, got 9223372036854775808"),
        ({"model": 5}, "model must be a Model or a spec such as 'tiny' or 'random:gpt2', got 5"),
        ({"model": "./nowhere"}, "no such folder: './nowhere'"),
        ({"tokenizer": "random:gpt2"}, "tokenizer='random:gpt2': 'random:gpt2' has random weights and no tokenizer"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_one_error(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        LLM(**{"model": "tiny", "device": "cpu", **wrong})


def test_a_missing_model_is_named():
    with pytest.raises(ValueError, match="^LLM needs a value for model$"):
        LLM(device="cpu")


def test_a_tokenizer_that_cuts_or_pads_prompts_is_refused(tiny):
    for state, change in (("truncation", {"max_length": 3}), ("padding", {"length": 9})):
        tokenizer = load_tokenizer("tiny")
        getattr(tokenizer, f"enable_{state}")(**change)
        with pytest.raises(
            ValueError, match=rf"^tokenizer.{state} must be None, got {{.*}}: call tokenizer.no_{state}"
        ):
            LLM(tiny, tokenizer=tokenizer, num_kvcache_blocks=1)


@pytest.mark.parametrize("given", [{"dtype": "bfloat16"}, {"device": "cpu"}, {"quantization": "int8"}])
def test_a_model_has_its_own_dtype_and_device(tiny, given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}='.*' is for a spec: a Model has its own$"):
        LLM(tiny, **given)
