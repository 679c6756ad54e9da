"""Ctrl-C before every line of the engine, and the garbage collector at every line of a step."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable

import pytest
from at_line import AtLine
from draws import TIMES
from served import params
from small_engines import assert_empty, engine_of
from tight_llm import EXECUTORS, assert_whole, llm_of

from roseinfer.drive import drive
from roseinfer.engine import block_manager
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.calls import deferred_interrupts, noted_interrupts
from roseinfer.engine.engine import Engine
from roseinfer.llm.llm import LLM
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow


BOOKS = {block_manager.__file__}
MOST_LINES = 24 * TIMES  # at which something happens in a test, spread over all: more of them at night


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def generate(llm: LLM, prompts) -> None:
    llm.generate(prompts, params(4), use_tqdm=False)


def stream(llm: LLM, prompts) -> None:
    """One is read to its end, another one is closed, and of a third the loop is left."""
    closed = llm.stream(prompts[2:], params(4))
    next(closed)
    for output in llm.stream(prompts[:2], params(4)):
        if len(output.outputs[0].token_ids) == 2:
            closed.close()
    for _ in llm.stream(prompts[1:], params(4)):
        break


def chat_and_abort(llm: LLM, prompts) -> None:
    for output in llm.stream(prompts, params(4)):
        if len(output.outputs[0].token_ids) == 2 and not output.finished:
            llm.abort(output.request_id)
    llm.reset_prefix_cache()


CALLS = {call.__name__: call for call in (generate, stream, chat_and_abort)}


def lines_of(call: Callable[[], None]) -> int:
    with AtLine(None, lambda: None) as counter:
        call()
    return counter.num_lines


@EXECUTORS
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_ctrl_c_before_any_line_of_an_llm_s_call_leaves_it_whole(small, prompts, wanted, call, async_scheduling):
    interrupt_before_lines_of(call, llm_of(small, async_scheduling=async_scheduling), prompts, wanted)


def interrupt_before_lines_of(call: Callable[[LLM, list[list[int]]], None], llm: LLM, prompts, wanted) -> None:
    """A real signal, before every line in turn, or before as many as time allows, spread over all of them."""
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


def engine_calls(engine: Engine, prompts) -> tuple[list[Sequence], dict[str, Callable[[], object]]]:
    """Five sequences, two of which run, and calls that change the engine."""
    seqs = [Sequence(prompt, params(5)) for prompt in prompts]
    for seq in seqs[:3]:
        engine.add(seq)
    engine.step(), engine.step(), engine.step()
    return seqs, {"add": lambda: engine.add(seqs[3]), "step": engine.step, "abort": lambda: engine.abort(seqs[0])}


@EXECUTORS
@pytest.mark.parametrize("name", ["add", "step", "abort"])
def test_ctrl_c_before_any_line_of_an_engine_s_call_does_it_whole_or_not_at_all(
    small, prompts, wanted, name, async_scheduling
):
    settings = {"num_blocks": 9, "max_num_seqs": 3, "max_num_batched_tokens": 16}
    number = raised = 0
    while True:
        engine = engine_of(small, async_scheduling=async_scheduling, **settings)
        seqs, calls = engine_calls(engine, prompts)
        try:
            with AtLine(number, press) as at:
                calls[name]()
        except KeyboardInterrupt:
            raised += 1
        if not at.where:
            break
        engine.blocks.check()
        list(drive(engine))
        assert_empty(engine, at.where)
        for seq, ids in zip(seqs, wanted, strict=True):
            if seq.finish_reason != "abort":
                assert seq.output_ids in ([], ids[:5]), at.where
        number += 1 if name != "step" else 3
    assert raised > 3


def test_ctrl_c_before_any_line_of_the_books_when_a_stage_changes_them(small, prompts):
    """EngineStage has no engine around it: blocks are reserved and freed whole all the same."""
    stage = EngineStage(small, num_blocks=9, block_size=8)
    number, raised = 0, []
    while True:
        seqs = [Sequence(prompt, params(9)) for prompt in prompts[:2]]
        try:
            with AtLine(number, press, BOOKS) as at:
                for seq, token in zip(seqs, stage.first_tokens(seqs), strict=True):
                    seq.append(token)
                stage.next_tokens(seqs)
                for seq in seqs:
                    stage.free(seq)
        except KeyboardInterrupt:
            raised.append(at.where)
        if not at.where:
            break
        stage.tables.check()
        for seq in seqs:
            if stage.holds(seq):
                stage.free(seq)
        stage.tables.check()
        assert stage.num_free_blocks == 9, at.where
        number += 1
    assert len(raised) > 30


# The mechanism


def test_ctrl_c_is_raised_at_the_end_of_a_block_and_at_its_edges():
    handler = signal.getsignal(signal.SIGINT)
    seen = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        with deferred_interrupts() as edge:
            press()
            edge()
        seen.append("the inner block leaves it to the outer one")
    with pytest.raises(KeyboardInterrupt), deferred_interrupts() as edge:
        press()
        seen.append("noted")
        edge()
        seen.append("never")
    assert len(seen) == 2 and signal.getsignal(signal.SIGINT) is handler


def test_an_error_and_ctrl_c_in_one_block_are_both_told():
    with pytest.raises(KeyboardInterrupt) as raised, deferred_interrupts():
        press()
        raise MemoryError
    assert isinstance(raised.value.__context__, MemoryError)


def test_a_run_that_asks_hears_of_ctrl_c_from_inside_an_engine_s_call():
    with noted_interrupts() as stop:
        with deferred_interrupts() as edge:
            press()
            edge()
            assert stop()
        with pytest.raises(KeyboardInterrupt), deferred_interrupts():
            press()


def test_other_handlers_are_called_and_where_none_is_nothing_changes():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *signal: heard.append(signal))
    try:
        with deferred_interrupts():
            press()
            assert not heard
        assert len(heard) == 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with deferred_interrupts(), noted_interrupts() as stop:
            press()
            assert not stop() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


# The garbage collector


@EXECUTORS
def test_streams_that_the_garbage_collector_ends_at_any_line_of_a_step(small, prompts, wanted, async_scheduling):
    llm = llm_of(small, async_scheduling=async_scheduling)

    def two_tokens(at: AtLine) -> None:
        cycle = [llm.stream(prompts[1:3], params(9))]
        cycle.append(cycle)
        next(cycle[0])
        other = llm.stream(prompts[:1], params(9))
        next(other)
        del cycle
        with at:
            ids = [next(other).outputs[0].token_ids for _ in range(2)][-1]
        assert ids == wanted[0][:3], at.where

    gc.disable()
    gc.freeze()  # what is there already need not be looked through each time
    try:
        two_tokens(at := AtLine(0, gc.collect))
        for number in range(0, at.num_lines, max(1, at.num_lines // MOST_LINES)):
            two_tokens(at := AtLine(number, gc.collect))
            gc.collect()
            assert_whole(llm, prompts, wanted, at.where)
    finally:
        gc.unfreeze()
        gc.enable()
