"""Stages 14 and 15, whatever happens in whatever order: each block in one place, each request reads its own text."""

from __future__ import annotations

import pytest
from checked_stages import MODEL, Texts, request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roseinfer.sequence import Sequence
from stages import PrefixCache, TokenBudget

# The contract's random_queues, a promise of stages 14 and 19 in every run, says nearly the same of tokens.
pytestmark = pytest.mark.nightly
has_work = precondition(lambda self: self.stage.has_work)


class OwnBlocks(Texts, TokenBudget):
    pass


class SharedBlocks(Texts, PrefixCache):
    pass


class AnyOrder(RuleBasedStateMachine):
    """Requests with beginnings in common come, fork, are aborted and preempted, in pools so small that blocks are
    evicted and sequences preempted by themselves too. Every block is free, idle or held, as often as it says."""

    @initialize(
        stage_class=st.sampled_from([OwnBlocks, SharedBlocks, SharedBlocks]),
        num_blocks=st.integers(4, 14),
        block_size=st.integers(1, 5),
        places=st.integers(1, 4),
        more=st.integers(0, 20),
    )
    def begin(self, stage_class, num_blocks, block_size, places, more):
        self.stage = stage_class(
            MODEL,
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=places,
            max_num_batched_tokens=places + more,
        )
        self.tokens, self.ended = num_blocks * block_size, []

    @rule(
        base=st.sampled_from([[i % 3 for i in range(24)], [0] * 24]),
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 6), max_size=5),
        max_tokens=st.integers(1, 9),
    )
    def add(self, base, shared, own, max_tokens):
        prompt = (base[:shared] + own)[: self.tokens] or [0]
        self.stage.add(request(prompt, min(max_tokens, self.tokens + 1 - len(prompt))))

    @has_work
    @rule(data=st.data())
    def fork(self, data):
        parent = data.draw(st.sampled_from(self.live()))
        self.stage.add(request(parent.token_ids[: parent.num_prompt_tokens], parent.params.max_tokens, parent))

    @has_work
    @rule(times=st.integers(1, 4))
    def step(self, times):
        for _ in range(times):
            if self.stage.has_work:
                self.one_step()

    def one_step(self):
        lengths = {seq: len(seq) for seq in self.live()}
        done = self.stage.step()
        assert {seq for seq, length in lengths.items() if len(seq) > length} == set(done)
        self.ended += [seq for seq in done if seq.finish_reason]

    @has_work
    @rule()
    def fail(self):
        """A step that is never made."""
        self.stage.schedule()

    @has_work
    @rule(data=st.data())
    def abort(self, data):
        self.stage.abort(data.draw(st.sampled_from(self.live())))

    @precondition(lambda self: self.stage.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.stage.preempt(data.draw(st.sampled_from(self.stage.running)))

    @invariant()
    def books_are_in_order(self):
        if hasattr(self, "stage"):
            self.stage.check()
            tables = self.stage.tables
            held = {block for seq_id in tables.seq_ids for block in tables.of(seq_id, 0)}
            assert len(held) + self.stage.num_free_blocks == tables.num_blocks

    def live(self) -> list[Sequence]:
        return [*self.stage.running, *self.stage.waiting]

    def teardown(self):
        if not hasattr(self, "stage"):
            return
        for _ in range(2000):
            if not self.stage.has_work:
                break
            self.one_step()
        assert not self.stage.has_work, "a request starves"
        for seq in self.ended:
            text = seq.token_ids[: seq.num_prompt_tokens]
            while len(text) < len(seq):
                text.append(sum(text) % 7)
            assert text == seq.token_ids and len(seq) == seq.max_len


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, report_multiple_bugs=False)
