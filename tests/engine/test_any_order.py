"""Whatever happens in whatever order: no block lost, shared while written, or freed twice, and every token right."""

from __future__ import annotations

import pytest
from draws import draws
from fake_engine import FakeEngine, assert_right, continuation, request
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from roseinfer.engine.policies import POLICIES
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow


BASES = [[i % 7 for i in range(24)], [(6 + i) % 7 for i in range(24)], [0] * 24]


class AnyOrder(RuleBasedStateMachine):
    """Requests with beginnings in common come, share, fork, are aborted and preempted, steps fail, blocks are evicted.
    The pool is small, so that preemption and eviction happen by themselves, too."""

    @initialize(
        num_blocks=st.integers(6, 14),
        block_size=st.integers(1, 4),
        places=st.integers(1, 4),
        more=st.integers(0, 12),
        policy=st.sampled_from(sorted(POLICIES)),
        caching=st.sampled_from([True, True, True, False]),
        behind=st.booleans(),
        num_drafts=st.sampled_from([0, 1, 2, 5]),
    )
    def begin(self, num_blocks, block_size, places, more, policy, caching, behind, num_drafts):
        behind = behind and not num_drafts
        self.engine = FakeEngine(num_blocks, block_size, places, places + more, policy, caching, behind, num_drafts)
        self.policy = policy
        self.tokens = num_blocks * block_size
        self.ended: list[Sequence] = []

    @rule(
        base=st.sampled_from(BASES),
        shared=st.integers(0, 24),
        own=st.lists(st.integers(0, 6), max_size=5),
        max_tokens=st.integers(1, 9),
        priority=st.integers(-1, 1),
        stops_at=st.none() | st.integers(0, 8),
        fails_after=st.none() | st.none() | st.integers(0, 8),
    )
    def add(self, base, shared, own, max_tokens, priority, stops_at, fails_after):
        prompt = (base[:shared] + own)[: self.tokens] or [0]
        max_tokens = min(max_tokens, self.tokens + 1 - len(prompt))  # the last token needs no slot
        stop = None
        if stops_at is not None and self.policy != "longest_output":  # which has to know how many come
            stop = continuation(prompt, max_tokens)[min(stops_at, max_tokens - 1)]
        self.engine.add(seq := request(prompt, max_tokens, stop, priority=priority))
        if fails_after is not None:
            self.engine.fails_after[seq.seq_id] = fails_after

    @precondition(lambda self: self.live())
    @rule(data=st.data(), more=st.integers(0, 2))
    def fork(self, data, more):
        """Further samples of a prompt that waits, is being computed, or is."""
        parent = data.draw(st.sampled_from(self.live()))
        self.engine.add(request(parent.token_ids[: parent.num_prompt_tokens], parent.params.max_tokens, parent=parent))

    @rule(times=st.integers(1, 3))
    def step(self, times):
        for _ in range(times):
            self.ended += [seq for seq in self.engine.step() if seq.finish_reason]

    @rule()
    def fail(self):
        """A step whose tokens never come, nor those of the one in flight."""
        self.engine.computed()
        self.engine.drop()

    @precondition(lambda self: self.engine.scheduler.running and not self.engine.behind)
    @rule(data=st.data(), aborted=st.booleans())
    def lose_a_token_in_flight(self, data, aborted):
        step = self.engine.computed()
        assert step
        seq = data.draw(st.sampled_from(self.engine.scheduler.running))
        made = seq.output_ids
        (self.engine.scheduler.abort if aborted else self.engine.scheduler.preempt)(seq)
        self.ended += [done for done in self.engine.commit(step) if done.finish_reason]
        assert seq.output_ids == made

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data):
        seq = data.draw(st.sampled_from(self.live()))
        self.engine.scheduler.abort(seq)
        self.ended.append(seq)

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(data=st.data())
    def preempt(self, data):
        self.engine.drop()
        self.engine.scheduler.preempt(data.draw(st.sampled_from(self.engine.scheduler.running)))

    @precondition(lambda self: self.engine.cache and self.engine.cache.idle)
    @rule()
    def evict(self):
        self.engine.blocks.pool.free.append(self.engine.cache.evict())

    @invariant()
    def books_are_in_order(self):
        if hasattr(self, "engine"):
            self.engine.check()

    def live(self) -> list[Sequence]:
        return [*self.engine.scheduler.running, *self.engine.scheduler.waiting]

    def teardown(self):
        if hasattr(self, "engine"):
            self.engine.run_out()
            for seq in self.ended:
                assert_right(seq)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = draws(50, stateful_step_count=50, report_multiple_bugs=False)
