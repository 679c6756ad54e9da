"""Ctrl-C before every line of an engine that drafts."""

from __future__ import annotations

import pytest
from at_line import AtLine
from drafting import NGRAM, always, draft_model, drafting_engine
from served import params
from small_engines import assert_empty
from test_interrupts import CALLS, interrupt_before_lines_of, press
from tight_llm import llm_of

from roseinfer.drive import drive
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow

METHODS = {"ngram": lambda model: NGRAM, "draft model": lambda model: draft_model(model, 2)}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_ctrl_c_before_any_line_of_an_llm_s_call_leaves_it_whole(small, prompts, wanted, call, method):
    llm = llm_of(small, speculative=method(small))
    always(llm)
    interrupt_before_lines_of(call, llm, prompts, wanted)


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
