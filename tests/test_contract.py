"""What every stage promises. A stage gets all of this by standing in stages.LADDER."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracles import prompts_of, small_llama, small_model

from roseinfer.blocks import OutOfBlocks
from roseinfer.generate import begin, decode_step, generate, stream
from roseinfer.reference import hf_generate, reference_generate, reference_logits
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage
from stages import LADDER

pytestmark = pytest.mark.parametrize("stage_class", LADDER, ids=lambda cls: cls.name)
MIXED = [3, 17, 1, 64, 30, 65]
MODELS = {
    "gpt2": small_model(),
    "gpt2, 2 KV heads": small_model(num_kv_heads=2),
    "gpt2, 1 KV head": small_model(num_kv_heads=1),
    **{family: small_llama(family) for family in ("llama", "qwen2", "qwen3")},
}


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def test_is_named_after_its_module(stage_class: type[Stage]):
    assert stage_class.__module__ == f"stages.{stage_class.name}"


@pytest.mark.parametrize(
    ("name", "max_num_seqs"), [("gpt2", 1), ("gpt2, 2 KV heads", 16), *((name, 3) for name in MODELS)]
)
def test_equals_the_reference_while_the_batch_grows_and_shrinks(stage_class, name, max_num_seqs):
    """Mixed prompt lengths and mixed output lengths: with 3 places the batch is refilled all the time."""
    model = MODELS[name]
    prompts = prompts_of(MIXED, model.config.vocab_size)
    lengths = [5, 12, 70, 9, 1, 20]
    stage = stage_class(model, num_blocks=16, max_num_seqs=max_num_seqs)
    seqs = generate(stage, prompts, [greedy(n) for n in lengths])
    expected = reference_generate(model, prompts, max(lengths))
    assert [seq.output_ids for seq in seqs] == [tokens[:n] for tokens, n in zip(expected, lengths, strict=True)]
    assert [seq.finish_reason for seq in seqs] == ["length"] * len(prompts)
    assert stage.num_free_blocks == 16


def test_equals_transformers_on_a_mixed_batch(stage_class, tiny):
    prompts = prompts_of(MIXED, tiny.config.vocab_size)
    stage = stage_class(tiny, num_blocks=16)
    seqs = generate(stage, prompts, greedy(12))
    assert [seq.output_ids for seq in seqs] == hf_generate(tiny, prompts, 12)


def test_random_gpt2_equals_transformers(stage_class, gpt2_shape):
    prompts = prompts_of([2, 9, 5], gpt2_shape.config.vocab_size)
    stage = stage_class(gpt2_shape, num_blocks=3)
    seqs = generate(stage, prompts, greedy(4))
    assert [seq.output_ids for seq in seqs] == hf_generate(gpt2_shape, prompts, 4)


@pytest.mark.parametrize("length", [63, 64, 65, 127, 128])
def test_block_edges(stage_class, small, length):
    [prompt] = prompts_of([length], small.config.vocab_size)
    stage = stage_class(small, num_blocks=4)
    [seq] = generate(stage, [prompt], greedy(4))
    assert seq.output_ids == reference_generate(small, [prompt], 4)[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_stay_close(stage_class, dtype):
    model = small_model()
    prompts = prompts_of([4, 11], model.config.vocab_size)
    exact = [reference_logits(model, p)[-1] for p in prompts]
    stage = stage_class(model.to(dtype), num_blocks=4)
    seqs = [Sequence(p[:-1], SamplingParams()) for p in prompts]
    for seq, prompt in zip(seqs, prompts, strict=True):
        stage.prefill(seq)
        seq.append(prompt[-1])
    tolerance = {torch.float16: 0.02, torch.bfloat16: 0.15}[dtype]
    scale = torch.stack(exact).abs().max()
    assert (stage.decode(seqs).float() - torch.stack(exact)).abs().max() < tolerance * scale


def test_a_small_block_size_changes_nothing(stage_class, small):
    prompts = prompts_of([1, 4, 5, 8], small.config.vocab_size)
    seqs = generate(stage_class(small, num_blocks=40, block_size=4), prompts, greedy(10))
    assert [seq.output_ids for seq in seqs] == reference_generate(small, prompts, 10)


def test_logits_rows_follow_the_order_given(stage_class, small):
    stage = stage_class(small, num_blocks=4)
    seqs = begin(stage, prompts_of([3, 7], small.config.vocab_size), greedy(8))
    logits = stage.decode(list(reversed(seqs)))
    expected = torch.stack([reference_logits(small, seq.token_ids)[-1] for seq in reversed(seqs)])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_freeing_twice_or_unknown_is_an_error(stage_class, small):
    stage = stage_class(small, num_blocks=4)
    [seq] = begin(stage, [[1, 2, 3]], greedy(4))
    stage.free(seq)
    with pytest.raises(ValueError, match=f"sequence {seq.seq_id} is not held"):
        stage.free(seq)
    with pytest.raises(ValueError, match="is not held"):
        stage.decode([seq])
    assert stage.num_free_blocks == 4


def test_a_freed_sequence_can_be_prefilled_again_with_its_output(stage_class, small):
    stage = stage_class(small, num_blocks=4)
    [seq] = begin(stage, [[5, 6, 7]], greedy(8))
    decode_step(stage, [seq])
    stage.free(seq)
    seq.append(int(stage.prefill(seq).argmax()))
    assert seq.output_ids == reference_generate(small, [[5, 6, 7]], 3)[0]


def test_misuse_is_refused_by_name(stage_class, small):
    stage = stage_class(small, num_blocks=4, max_num_seqs=1)
    [seq] = begin(stage, [[1, 2, 3]], greedy(4))
    with pytest.raises(ValueError, match="already held"):
        stage.prefill(seq)
    with pytest.raises(ValueError, match="max_num_seqs=1"):
        stage.prefill(Sequence([1], SamplingParams()))
    with pytest.raises(ValueError, match="at least one"):
        stage.decode([])
    with pytest.raises(ValueError, match="twice"):
        stage.decode([seq, seq])
    stage.decode([seq])
    with pytest.raises(ValueError, match="exactly one new token"):
        stage.decode([seq])
    for wrong in (
        {"num_blocks": 0},
        {"num_blocks": 4, "block_size": 0},
        {"num_blocks": 4, "max_num_seqs": -1},
    ):
        with pytest.raises(ValueError, match=list(wrong)[-1]):
            stage_class(small, **wrong)


def test_requests_that_can_never_fit_are_refused_before_any_runs(stage_class, small):
    stage = stage_class(small, num_blocks=1)
    for prompt, max_tokens, named in [
        ([1] * 150, 100, "max_model_len=192"),
        ([1] * 60, 6, "num_blocks=1"),
        ([97], 1, "97"),
    ]:
        started = []
        with pytest.raises(ValueError, match=named):
            for seq, _ in stream(stage, [Sequence([1], greedy(1)), Sequence(prompt, greedy(max_tokens))]):
                started.append(seq)
        assert started == []
    assert stage.num_free_blocks == 1


def test_pool_exhausted_changes_nothing_and_work_goes_on(stage_class, small):
    stage = stage_class(small, num_blocks=3, block_size=4)
    prompts = prompts_of([4, 3], small.config.vocab_size)
    first, second = begin(stage, prompts, greedy(6))
    with pytest.raises(OutOfBlocks, match="2 more blocks"):
        stage.prefill(Sequence([1] * 5, greedy(1)))
    decode_step(stage, [first, second])  # the first takes the last block; on the next step the second finds none
    before = (first.num_cached_tokens, second.num_cached_tokens, stage.num_free_blocks)
    with pytest.raises(OutOfBlocks, match="1 more blocks of 4 tokens are needed, 0 of num_blocks=3"):
        stage.decode([first, second])
    assert (first.num_cached_tokens, second.num_cached_tokens, stage.num_free_blocks) == before
    stage.free(first)
    decode_step(stage, [second])
    assert second.output_ids == reference_generate(small, [prompts[1]], len(second.output_ids))[0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("during", ["prefill", "decode"])
def test_an_error_or_ctrl_c_frees_everything(stage_class, small, monkeypatch, error, during):
    stage = stage_class(small, num_blocks=8)
    seqs = [Sequence(p, greedy(9)) for p in prompts_of([3, 5], small.config.vocab_size)]
    broken = "write_prompt" if during == "prefill" else "append"

    def fail(*_):
        raise error("stop")

    tokens = stream(stage, seqs)
    next(tokens)
    monkeypatch.setattr(stage, broken, fail)
    with pytest.raises(error):
        list(tokens)
    assert stage.num_free_blocks == 8 and len(stage.tables) == 0
    monkeypatch.undo()
    assert generate(stage, [[1, 2]], greedy(3))[0].output_ids == reference_generate(small, [[1, 2]], 3)[0]


def test_closing_the_stream_frees_everything(stage_class, small):
    stage = stage_class(small, num_blocks=8)
    tokens = stream(stage, [Sequence([1, 2, 3], greedy(9)), Sequence([4], greedy(9))])
    for _ in range(5):
        next(tokens)
    tokens.close()
    assert stage.num_free_blocks == 8


class Schedule(RuleBasedStateMachine):
    """Random add, decode and free. Each step's logits equal the reference's, and each block has one owner."""

    stage_class: type[Stage]

    @initialize(name=st.sampled_from(sorted(MODELS)))
    def make(self, name):
        self.stage = self.stage_class(MODELS[name], num_blocks=9, block_size=4, max_num_seqs=4)
        self.live: list[Sequence] = []

    @precondition(lambda self: len(self.live) < 4)
    @rule(prompt=st.lists(st.integers(0, 96), min_size=1, max_size=11))
    def add(self, prompt):
        seq = Sequence(prompt, SamplingParams(max_tokens=1))
        try:
            logits = self.stage.prefill(seq)
        except OutOfBlocks:
            assert not self.stage.holds(seq) and seq.num_cached_tokens == 0
            return
        self.live.append(seq)
        self.compare(logits, seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), token=st.integers(0, 96))
    def decode(self, data, token):
        chosen = data.draw(st.lists(st.sampled_from(self.live), min_size=1, unique_by=id), label="chosen")
        for seq in chosen:
            if len(seq) == seq.num_cached_tokens:
                seq.append((token + seq.seq_id) % 97)
        before = [seq.num_cached_tokens for seq in chosen]
        try:
            logits = self.stage.decode(chosen)
        except OutOfBlocks:
            assert [seq.num_cached_tokens for seq in chosen] == before
            return
        for row, seq in zip(logits, chosen, strict=True):
            self.compare(row, seq)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data):
        seq = data.draw(st.sampled_from(self.live), label="freed")
        self.live.remove(seq)
        self.stage.free(seq)

    def compare(self, logits, seq):
        expected = reference_logits(self.stage.model, seq.token_ids)[-1]
        torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-3)

    @invariant()
    def every_block_has_one_owner(self):
        if hasattr(self, "stage"):
            self.stage.tables.check()
            held = sum(self.stage.tables.blocks_for(seq.num_cached_tokens) for seq in self.live)
            assert self.stage.num_free_blocks <= 9 - held

    def teardown(self):
        if hasattr(self, "stage"):
            for seq in self.live:
                self.stage.free(seq)
            assert self.stage.num_free_blocks == 9


def test_random_schedules(stage_class):
    machine = type("Schedule", (Schedule,), {"stage_class": stage_class})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=25, deadline=None, derandomize=True)
    )
