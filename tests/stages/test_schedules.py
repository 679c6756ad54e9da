"""Random schedules of every stage, by Hypothesis: what the contract's own search might not think of."""

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
from oracles import small_llama, small_model

from roseinfer.blocks import OutOfBlocks
from roseinfer.reference import reference_logits
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage
from stages import LADDER

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("stage_class", LADDER, ids=lambda cls: cls.name)]
MODELS = {
    "gpt2": small_model(),
    "gpt2, 2 KV heads": small_model(num_kv_heads=2),
    "gpt2, 1 KV head": small_model(num_kv_heads=1),
    **{family: small_llama(family) for family in ("llama", "qwen2", "qwen3")},
}


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
