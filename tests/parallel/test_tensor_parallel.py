"""LLM(tensor_parallel_size=2): the tokens of one process, from two. One pair of processes for each model."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from oracles import prompts_of, small_llama, small_model, values_of
from processes import wait_until_gone
from served import drafting_always
from tiers import in_every_run

from roseinfer.llm.llm import LLM
from roseinfer.models import Model
from roseinfer.parallel.ranks import RankFailed
from roseinfer.profiling import capture
from roseinfer.reference import hf_generate, reference_generate
from roseinfer.sampling_params import SamplingParams

pytestmark = pytest.mark.slow
MAKERS: dict[str, Callable[[], Model]] = {
    "gpt2": small_model,
    "llama": lambda: small_llama("llama", o_bias=True, qkv_bias=True),
    "qwen2": lambda: small_llama("qwen2"),  # at night: test_split.py cuts it, too, and what follows is llama's
}
SIZES = {"num_kvcache_blocks": 24, "block_size": 8, "max_num_seqs": 6, "max_num_batched_tokens": 24}
LENGTHS = (3, 17, 40, 9, 1, 26)
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module", params=in_every_run({name: (name,) for name in MAKERS}, ("gpt2", "llama")))
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[LLM, LLM, Model]]:
    """The same model in two processes, and in one. The last test of each pair closes the first."""
    model = MAKERS[request.param]()
    with LLM(model, tensor_parallel_size=2, **SIZES) as two:
        yield two, LLM(model, **SIZES), model


def token_ids(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(sample.token_ids) for output in outputs for sample in output.outputs]


def test_greedy_tokens_are_those_of_the_reference_and_of_transformers(pair: tuple[LLM, LLM, Model]) -> None:
    two, _, model = pair
    prompts = prompts_of(LENGTHS, model.config.vocab_size)
    found = token_ids(two, prompts, GREEDY)
    assert found == reference_generate(model, prompts, GREEDY.max_tokens)
    assert found == hf_generate(model, prompts, GREEDY.max_tokens)


def test_no_step_computes_a_layer_without_its_sum_over_ranks(pair: tuple[LLM, LLM, Model]) -> None:
    runner = pair[0].engine.runner
    assert runner.whole is None and runner.fused is None


def test_a_small_pool_preempts_and_tokens_stay(pair: tuple[LLM, LLM, Model]) -> None:
    two, _, model = pair
    before = two.engine.scheduler.num_preemptions
    prompts = prompts_of((30, 31, 29, 28, 27, 33), model.config.vocab_size, seed=3)
    found = token_ids(two, prompts, SamplingParams(temperature=0, max_tokens=40))
    assert two.engine.scheduler.num_preemptions > before
    assert found == reference_generate(model, prompts, 40)


def test_prefix_hits_and_copied_blocks_on_all_ranks(pair: tuple[LLM, LLM, Model]) -> None:
    two, one, model = pair
    [prompt] = prompts_of((29,), model.config.vocab_size, seed=5)
    params = SamplingParams(temperature=0.9, max_tokens=20, n=3, seed=11)
    for llm in (two, one):
        llm.reset_prefix_cache()
    assert token_ids(two, [prompt], params) == token_ids(one, [prompt], params)
    before = two.engine.metrics.num_tokens
    again = two.generate([prompt, prompt + [1, 2, 3]], GREEDY, use_tqdm=False)
    # Three blocks of eight tokens are there already; of the 24 new tokens the last one is never computed.
    assert two.engine.metrics.num_tokens - before == (29 - 24) + (32 - 24) + 2 * 23
    assert [list(output.outputs[0].token_ids) for output in again] == reference_generate(
        model, [prompt, prompt + [1, 2, 3]], GREEDY.max_tokens
    )


def test_sampling_and_log_probabilities_are_those_of_one_process(pair: tuple[LLM, LLM, Model]) -> None:
    two, one, model = pair
    prompts = prompts_of(LENGTHS, model.config.vocab_size, seed=7)
    params = [
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=seed, max_tokens=16, logprobs=2, prompt_logprobs=1)
        for seed in range(len(prompts))
    ]
    for found, wanted in zip(two.generate(prompts, params), one.generate(prompts, params), strict=True):
        assert found.outputs[0].token_ids == wanted.outputs[0].token_ids
        of_all = zip(found.prompt_logprobs[1:], wanted.prompt_logprobs[1:], strict=True)
        of_all = [*of_all, *zip(found.outputs[0].logprobs, wanted.outputs[0].logprobs, strict=True)]
        for mine, theirs in of_all:
            assert values_of(mine) == pytest.approx(values_of(theirs), abs=1e-3)


def test_a_rank_has_half_of_the_heads_and_of_the_cache(pair: tuple[LLM, LLM, Model]) -> None:
    two, one, model = pair
    assert two.engine.pool.memory.numel() * 2 == one.engine.pool.memory.numel()
    assert two.model.config.num_heads * 2 == model.config.num_heads


def test_a_trace_of_a_step_shows_two_all_reduces_a_layer(pair: tuple[LLM, LLM, Model]) -> None:
    two, _, model = pair
    trace = capture(
        lambda: two.generate([[1, 2]], SamplingParams(max_tokens=1, temperature=0), use_tqdm=False), steps=1
    )
    assert trace.count("roseinfer.parallel.all_reduce") == 2 * model.config.num_layers


def test_a_closed_llm_says_so_and_its_processes_are_gone(pair: tuple[LLM, LLM, Model]) -> None:
    two, _, _ = pair
    [pid] = pids(two)
    two.close()
    two.close()
    wait_until_gone(pid)
    with pytest.raises(RankFailed, match="the LLM was closed"):
        two.generate([[1]], GREEDY)


def test_a_spec_has_its_tokenizer_its_prepared_matrices_and_its_texts() -> None:
    prompts, params = ["Return the", "The class of"], SamplingParams(temperature=0, max_tokens=24, stop=[" the"])
    threads = torch.get_num_threads()
    with LLM("tiny", tensor_parallel_size=2, max_num_seqs=4) as two:
        found = [output.outputs[0] for output in two.generate(prompts, params)]
    assert torch.get_num_threads() == threads
    wanted = [output.outputs[0] for output in LLM("tiny", max_num_seqs=4).generate(prompts, params)]
    assert [(one.text, one.finish_reason) for one in found] == [(one.text, one.finish_reason) for one in wanted]


# Ends


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(small_model(), tensor_parallel_size=2, **SIZES) as llm:
        yield llm


def pids(llm: LLM) -> list[int]:
    return [other.process.pid for other in llm._ranks._others.others]


def test_drafts_from_the_text_are_verified_on_all_ranks_and_a_killed_one_is_named_once_and_for_all() -> None:
    model = small_model(num_kv_heads=2)
    speculative = {"method": "ngram", "num_tokens": 3, "prompt_lookup_min": 1}
    llm = drafting_always(LLM(model, tensor_parallel_size=2, speculative=speculative, **SIZES))
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], *prompts_of((5, 20), 97)]
    assert token_ids(llm, prompts, GREEDY) == reference_generate(model, prompts, GREEDY.max_tokens)
    [pid] = pids(llm)
    stream = llm.stream([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=150, ignore_eos=True))
    next(stream)
    os.kill(pid, signal.SIGKILL)
    why = re.escape(f"rank 1 (process {pid}) was ended by SIGKILL. All 2 ranks have ended: load the model again")
    with pytest.raises(RankFailed, match=why):
        for _ in stream:
            pass
    with pytest.raises(RuntimeError, match=why):
        llm.generate([[1]], GREEDY)
    wait_until_gone(pid)


def test_an_error_in_a_rank_ends_all_with_its_message(llm: LLM) -> None:
    [pid] = pids(llm)
    llm._ranks.tell("forward", {}, {})
    with pytest.raises(RankFailed, match=rf"rank 1 \(process {pid}\) failed: KeyError: 'token_ids'"):
        llm.generate([[1]], GREEDY)
    wait_until_gone(pid)


def test_an_error_of_rank_0_in_the_middle_of_a_step_ends_all(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    [pid] = pids(llm)
    monkeypatch.setattr(llm.model.h[1], "forward", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        llm.generate([[1]], GREEDY)
    monkeypatch.undo()
    with pytest.raises(RankFailed, match="rank 0 failed in the middle of a step: ZeroDivisionError"):
        llm.generate([[1]], GREEDY)
    wait_until_gone(pid)


@pytest.mark.nightly
def test_three_others_end_when_one_of_them_is_killed() -> None:
    with LLM(small_model(), tensor_parallel_size=4, **SIZES) as llm:
        assert token_ids(llm, [[5, 6]], GREEDY) == reference_generate(small_model(), [[5, 6]], GREEDY.max_tokens)
        killed = pids(llm)[1]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RankFailed, match=rf"rank 2 \(process {killed}\) was ended by SIGKILL"):
            llm.generate([[1]], GREEDY)
        for pid in pids(llm):
            wait_until_gone(pid)


def test_an_error_after_the_start_leaves_no_process() -> None:
    before = children()
    with pytest.raises(ValueError, match="kv_cache_memory_bytes gives the KV cache 1 bytes"):
        LLM(small_model(), tensor_parallel_size=2, kv_cache_memory_bytes=1)
    assert children() == before


def children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())
