"""Blocks that are found again: what is computed and what is not, who is evicted, and that no output ever changes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from fake_engine import FakeEngine, request
from oracles import assert_right, model_of, prompts_of, values_of
from small_engines import engine_of, run_out

from roseinfer.engine import prefix_cache
from roseinfer.engine.kv_pool import KVPool
from roseinfer.engine.prefix_cache import PrefixCache, block_key
from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams, Sequence

TEXT = [(5 * i + 3) % 97 for i in range(40)]


def shapes(engine: FakeEngine) -> list[list[int]]:
    shapes = [[n for _, n in step] for step in engine.steps]
    engine.steps.clear()
    return shapes


def run(engine: FakeEngine, *seqs: Sequence) -> list[list[int]]:
    engine.add(*seqs)
    engine.run_out()
    return shapes(engine)


# What is computed


@pytest.mark.parametrize(
    ("prompt", "computed"),
    [
        (TEXT[:11], 3),
        (TEXT[:10] + [0, 0], 4),
        (TEXT[:7], 3),
        (TEXT[:3], 3),
        ([0, *TEXT[1:12]], 12),
        (TEXT[:4] + [0] + TEXT[5:12], 8),
        (TEXT[4:12], 8),
    ],
    ids=["same", "same-blocks", "shorter", "no-full-block", "other-first", "other-middle", "moved"],
)
def test_full_blocks_with_the_same_text_from_the_start_are_not_computed_again(prompt, computed):
    engine = FakeEngine()
    assert run(engine, request(TEXT[:11], 1)) == [[11]]
    assert run(engine, request(prompt, 1)) == [[computed]]


@pytest.mark.parametrize("blocks", [1, 2, 3])
@pytest.mark.parametrize("other_holds_them", [False, True])
def test_a_prompt_of_whole_blocks_that_are_all_there_computes_one_token(blocks, other_holds_them):
    engine = FakeEngine(num_blocks=12)
    prompt = TEXT[: 4 * blocks]
    engine.add(holder := request(prompt, 20))
    engine.step()
    if not other_holds_them:
        engine.scheduler.abort(holder)
    entries = dict(engine.cache.entries)
    engine.add(request(prompt, 1))
    engine.step()
    assert [n for seq, n in engine.steps[-1] if seq is not holder] == [1]
    assert engine.cache.entries == entries, "its own copy of the last block is in no other sequence"
    engine.run_out()


def test_a_prompt_of_all_blocks_of_the_pool_computes_its_last_block_anew():
    """There is no block to copy the last one to."""
    engine = FakeEngine(num_blocks=3)
    assert run(engine, request(TEXT[:12], 1)) == [[12]]
    assert run(engine, request(TEXT[:12], 1)) == [[4]]


def test_outputs_are_found_too():
    """A conversation that goes on: the prompt and all that was said, but for the last token, which was never cached."""
    engine = FakeEngine()
    first = request(TEXT[:6], 7)
    run(engine, first)
    assert run(engine, request(first.token_ids + [1, 2], 1)) == [[3]]


def test_what_is_being_computed_is_waited_for():
    engine = FakeEngine(max_num_seqs=3, budget=40)
    seqs = [request(TEXT[:12] + [i], 2) for i in range(5)]
    other = request([9, 9, 9], 2)
    engine.add(*seqs[:2], other, *seqs[2:])
    engine.step()
    assert engine.steps[-1] == [(seqs[0], 13), (other, 3)] and engine.scheduler.waiting == [seqs[1], *seqs[2:]]
    engine.step()
    assert engine.steps[-1] == [(seqs[0], 1), (other, 1), (seqs[1], 1)]
    engine.run_out()


@pytest.mark.parametrize("leave", ["abort", "preempt"])
def test_nobody_waits_for_one_that_has_left(leave):
    engine = FakeEngine(budget=6)
    first, second = (request(TEXT[:16] + [i], 1) for i in range(2))
    engine.add(first, second)
    engine.step()
    getattr(engine.scheduler, leave)(first)
    engine.step()
    running = first if leave == "preempt" else second
    assert [seq for seq, _ in engine.steps[-1]] == [running]
    assert running.num_cached_tokens == 10, "one block was there, and was found again"
    engine.run_out()


def test_after_preemption_what_is_still_there_is_found():
    engine = FakeEngine()
    seq = request(TEXT[:9], 6)
    engine.add(seq)
    for _ in range(5):
        engine.step()
    engine.scheduler.preempt(seq)
    engine.step()
    assert engine.steps[-1] == [(seq, 2)], "of 14 tokens 12 are in full blocks"
    engine.run_out()


def test_hit_rate():
    engine = FakeEngine()
    assert engine.cache.hit_rate == 0.0
    run(engine, request(TEXT[:10], 1))
    run(engine, request(TEXT[:10], 1))
    assert (engine.cache.num_found_tokens, engine.cache.num_asked_tokens, engine.cache.hit_rate) == (8, 20, 0.4)


def test_without_a_cache_everything_is_computed():
    engine = FakeEngine(caching=False)
    assert [run(engine, request(TEXT[:11], 1)) for _ in range(2)] == [[[11]]] * 2


# What is kept


def test_only_full_blocks_with_computed_tokens_are_found():
    """Chunk by chunk, and token by token."""
    engine = FakeEngine(budget=6)
    seq = request(TEXT[:15], 9)
    engine.add(seq)
    while engine.scheduler.has_work:
        num_cached = sum(len(entry.token_ids) for entry in engine.cache.entries.values())
        assert num_cached == seq.num_cached_tokens // 4 * 4
        engine.step()
    assert len(engine.cache.entries) == 23 // 4
    assert [e.token_ids for e in engine.cache.entries.values()] == [seq.token_ids[i : i + 4] for i in range(0, 20, 4)]


def test_a_token_that_came_too_late_is_not_kept():
    engine = FakeEngine()
    seq = request(TEXT[:6], 9)
    engine.add(seq)
    engine.step(), engine.step()
    step = engine.computed()
    assert seq.num_cached_tokens == 7, "with the token in flight its second block is full"
    engine.scheduler.abort(seq)
    engine.commit(step)
    assert [entry.token_ids for entry in engine.cache.entries.values()] == [TEXT[:4]]
    engine.check()


def test_the_longest_idle_is_evicted_and_of_a_text_the_end_first():
    engine = FakeEngine(num_blocks=6, max_num_seqs=2)
    old, new = TEXT[:8], TEXT[20:28]
    run(engine, request(old, 1))
    run(engine, request(new, 1))
    run(engine, request(old + [7], 1))  # used again: now the younger one
    assert len(engine.cache.entries) == 4 and len(engine.cache.idle) == 4
    left = [[old[:4], old[4:], new[:4]], [old[:4], old[4:]], [old[:4]], []]
    holder = Sequence([1])
    for i, wanted in enumerate(left):
        engine.blocks.reserve({holder.seq_id: 4 * (3 + i)})
        engine.blocks.check()
        assert [entry.token_ids for entry in engine.cache.entries.values()] == wanted
    engine.blocks.free(holder.seq_id)
    assert run(engine, request(old + [7], 1)) == [[9]]


def test_no_token_is_hashed_twice(monkeypatch):
    """Neither while a sequence waits, nor when it is preempted, nor for others to find it."""
    hashed = []

    def counting(before, token_ids):
        hashed.append((before, *token_ids))
        return block_key(before, token_ids)

    monkeypatch.setattr(prefix_cache, "block_key", counting)
    engine = FakeEngine(num_blocks=8, max_num_seqs=2, budget=7)
    engine.add(*(request(TEXT[i : i + 13], 9) for i in range(3)))
    for step in range(30):
        if step in (4, 9):
            engine.scheduler.preempt(engine.scheduler.running[0])
        if engine.scheduler.has_work:
            engine.step()
    engine.run_out()
    assert len(hashed) == len(set(hashed)) == 3 * (21 // 4)


def test_a_key_is_of_all_the_text_up_to_its_block():
    moved = Sequence(TEXT[4:8]), Sequence(TEXT[:8])
    for seq in moved:
        PrefixCache(4).find(seq)
    keys = [moved[0].block_keys[0], *moved[1].block_keys]
    assert len(set(keys)) == 3 and all(len(key) == 32 for key in keys)


# Several samples of one prompt


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 9, 12])
def test_samples_compute_their_prompt_once(length, caching):
    engine = FakeEngine(budget=8, caching=caching, num_blocks=40)
    parent = request(TEXT[:length], 9)
    engine.add(parent, *(request(TEXT[:length], 9, parent=parent) for _ in range(3)))
    while parent.num_cached_tokens < length:
        assert engine.scheduler.running in ([], [parent])
        engine.step()
    engine.step()
    assert [n for _, n in engine.steps[-1]] == [1] * 4
    tables = [engine.blocks.of(seq.seq_id) for seq in engine.scheduler.running]
    shared = (length - 1) // 4
    assert all(table[:shared] == tables[0][:shared] for table in tables)
    assert len({table[shared] for table in tables}) == 4, "the block that is written is everyone's own"
    engine.run_out()


def test_a_sample_of_one_that_has_ended_is_a_request_like_any_other():
    engine = FakeEngine(max_num_seqs=1)
    parent = request(TEXT[:10], 3)
    assert run(engine, parent, request(TEXT[:10], 1, parent=parent)) == [[10], [1], [1], [2]]


def test_a_preempted_sample_shares_the_prompt_again():
    engine = FakeEngine(caching=False)
    parent = request(TEXT[:10], 9)
    child = request(TEXT[:10], 9, parent=parent)
    engine.add(parent, child)
    for _ in range(4):
        engine.step()
    engine.scheduler.preempt(child)
    engine.step()
    assert engine.steps[-1] == [(parent, 1), (child, 3)]
    engine.run_out()


def test_a_copy_of_a_block_that_is_yet_to_be_copied():
    """The parent comes back to a block that another one has completed, and in the same step its sample comes."""
    engine = FakeEngine()
    parent = request(TEXT[:10], 9)
    engine.add(parent)
    engine.step(), engine.step()
    engine.scheduler.preempt(parent)
    assert len(parent) == 12
    other = request(parent.token_ids, 2)
    child = request(TEXT[:10], 3, parent=parent)
    engine.scheduler.abort(parent)
    parent.finish_reason = None
    engine.add(other)
    engine.step()
    engine.add(parent, child)
    step = engine.scheduler.schedule()
    assert (step.seqs, step.num_new) == ([other, parent, child], [1, 1, 1])
    [source] = set(engine.blocks.pool.copies.values())
    assert source == engine.blocks.of(other.seq_id)[2] and len(engine.blocks.pool.copies) == 2
    engine.run_out()


def test_blocks_are_copied_as_they_were():
    """A chain and a ring: every block is read before any is written."""
    pool = KVPool(model_of("gpt2"), 4, 2)
    pool.memory.copy_(torch.arange(pool.memory.numel()).view_as(pool.memory))
    before = pool.memory.clone()
    pool.copy_blocks({1: 0, 2: 1, 0: 2})
    assert torch.equal(pool.memory[:, :, :5], before[:, :, [2, 0, 1, 3, 4]])


# A real model


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@pytest.mark.parametrize("same_key", [False, True])
def test_hits_change_no_output(name, monkeypatch, same_key):
    """Beginnings in common, mixed lengths, samples, eviction, in the reference's words; also if all keys were one."""
    if same_key:
        monkeypatch.setattr(prefix_cache, "block_key", lambda before, token_ids: b"")
    model = model_of(name)
    text, *tails = prompts_of((40, 1, 5, 9, 3), model.config.vocab_size)
    prompts = [text[:n] + tail for n, tail in zip((16, 24, 24, 33, 40, 32), [*tails, [], []], strict=True)]
    engine = engine_of(model, num_blocks=12, max_num_seqs=3, max_num_batched_tokens=30)
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    for _ in range(2):
        seqs = [Sequence(prompt, params) for prompt in prompts]
        seqs.append(Sequence(prompts[0], params, parent=seqs[0]))
        assert_right(model, run_out(engine, seqs))
    if not same_key:
        assert engine.blocks.prefix_cache.hit_rate > 0.3


def test_a_hit_changes_nobody_elses_logits(tiny):
    """The log-probabilities of requests beside one that finds its prompt are those that they have without it."""
    prompts = prompts_of((70, 33, 5), tiny.config.vocab_size)
    params = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=3)
    sizes = {"num_kvcache_blocks": 24, "block_size": 16}
    cold, warm, off = (LLM(tiny, enable_prefix_caching=on, **sizes) for on in (True, True, False))
    warm.generate([prompts[0]], params)
    outputs = [llm.generate(prompts, params, use_tqdm=False) for llm in (cold, warm, off)]
    assert warm.engine.blocks.prefix_cache.num_found_tokens == 64 and off.engine.blocks.prefix_cache is None
    for one, other in pairwise(outputs):
        for a, b in zip(one, other, strict=True):
            assert a.outputs[0].token_ids == b.outputs[0].token_ids
            for x, y in zip(a.outputs[0].logprobs, b.outputs[0].logprobs, strict=True):
                assert values_of(x) == pytest.approx(values_of(y), abs=1e-4)
