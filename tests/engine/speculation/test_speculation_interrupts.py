"""Ctrl-C before every line of an engine that drafts."""

from __future__ import annotations

import pytest
from at_line import AtLine
from drafting import NGRAM, always, draft_model, drafting_engine
from oracles import prompts_of
from served import params
from small_engines import assert_empty
from test_interrupts import CALLS, MOST_LINES, lines_of, press
from tight_llm import assert_whole

from roseinfer.drive import drive
from roseinfer.llm.llm import LLM
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow

METHODS = {"ngram": lambda model: NGRAM, "draft model": lambda model: draft_model(model, 2)}


@pytest.fixture(scope="module")
def prompts(small) -> list[list[int]]:
    first, second, third, _ = prompts_of((5, 30, 13, 30), small.config.vocab_size)
    return [first, second, third, [*second[:20], 1, 2]]


@pytest.fixture(scope="module")
def wanted(small, prompts) -> list[list[int]]:
    return reference_generate(small, prompts, 9)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_ctrl_c_before_any_line_of_an_llm_s_call_leaves_it_whole(small, prompts, wanted, call, method):
    llm = LLM(
        small,
        num_kvcache_blocks=9,
        block_size=8,
        max_num_seqs=3,
        max_num_batched_tokens=16,
        speculative=method(small),
    )
    always(llm)
    call(llm, prompts)
    total = lines_of(lambda: call(llm, prompts))
    raised = 0
    for number in range(0, total, max(1, total // MOST_LINES)):
        try:
            with AtLine(number, press) as at:
                call(llm, prompts)
        except KeyboardInterrupt:
            raised += 1
        assert_whole(llm, prompts, wanted, at.where)
    assert raised > 10


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_ctrl_c_before_any_line_of_a_step_with_drafts_does_it_whole_or_not_at_all(small, prompts, wanted, method):
    number = raised = 0
    while True:
        engine = drafting_engine(
            small, method(small), num_blocks=9, max_num_seqs=3, max_num_batched_tokens=16, enforce_eager=True
        )
        seqs = [Sequence(prompt, params(7)) for prompt in prompts]
        for seq in seqs:
            engine.add(seq)
        for _ in range(4):
            engine.step()
        try:
            with AtLine(number, press) as at:
                engine.step()
        except KeyboardInterrupt:
            raised += 1
        if not at.where:
            break
        engine.blocks.check()
        list(drive(engine))
        assert_empty(engine, at.where)
        assert [seq.output_ids for seq in seqs] == [ids[:7] for ids in wanted], at.where
        number += 5
    assert raised > 3
