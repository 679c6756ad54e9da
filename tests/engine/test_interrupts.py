"""Ctrl-C before every line of the engine, the garbage collector at every line of a step, and calls that meet."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from served import params
from test_steps_in_flight import engine_of

import roseinfer.engine
import roseinfer.llm
from roseinfer.contract.small_models import prompts_of
from roseinfer.engine import block_manager
from roseinfer.engine.as_stage import EngineStage
from roseinfer.engine.engine import Engine
from roseinfer.engine.interrupts import deferred_interrupts, interruptible, noted_interrupts
from roseinfer.engine.one_caller import OneCaller
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2
from roseinfer.overlap import devices
from roseinfer.reference import reference_generate
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow


ROOMS = roseinfer.engine, roseinfer.llm
FILES = {str(path) for room in ROOMS for path in Path(room.__file__).parent.glob("*.py")} | {devices.__file__}
BOOKS = {block_manager.__file__}
LENGTHS = (5, 30, 13, 30)
MOST_LINES = 60  # at which something happens in a test, spread over all
EXECUTORS = pytest.mark.parametrize("async_scheduling", [False, True], ids=["in turn", "one behind"])


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class AtLine:
    """Does something before line number `number` that the engine runs inside, in this thread. num_lines: so far."""

    def __init__(self, number: int | None, action: Callable[[], None], files: set[str] = FILES) -> None:
        self.number, self.action, self.files, self.num_lines, self.where = number, action, files, 0, ""

    def __enter__(self) -> AtLine:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def trace(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines - 1 == self.number:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.action()
        return self.trace


def llm_of(model: GPT2, async_scheduling: bool) -> LLM:
    """So small that blocks are shared, copied, evicted, and sequences preempted."""
    return LLM(
        model,
        num_kvcache_blocks=9,
        block_size=8,
        max_num_seqs=3,
        max_num_batched_tokens=16,
        async_scheduling=async_scheduling,
    )


@pytest.fixture(scope="module")
def prompts(small: GPT2) -> list[list[int]]:
    first, second, third, _ = prompts_of(LENGTHS, small.config.vocab_size)
    return [first, second, third, [*second[:20], 1, 2]]


@pytest.fixture(scope="module")
def wanted(small: GPT2, prompts) -> list[list[int]]:
    return reference_generate(small, prompts, 9)


def assert_whole(llm: LLM, prompts, wanted, where: str) -> None:
    """Nothing of what was interrupted is left, and the next call is right."""
    outputs = llm.generate(prompts[:2], params(2), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == [ids[:2] for ids in wanted[:2]], where
    engine = llm.engine
    engine.blocks.check()
    left = engine.blocks.num_free, engine.has_work, len(engine.blocks), any(engine.blocks.ref_counts)
    assert left == (9, False, 0, False) and not engine.metrics.times._live and not llm._live._live, where


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
    """A real signal, before every line in turn, or before as many as time allows, spread over all of them."""
    llm = llm_of(small, async_scheduling)
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
    seqs = [Sequence(prompt, params(9)) for prompt in prompts]
    for seq in seqs[:3]:
        engine.add(seq)
    engine.step(), engine.step(), engine.step()
    return seqs, {
        "add": lambda: engine.add(seqs[3]),
        "step": engine.step,
        "abort": lambda: engine.abort(seqs[0]),
    }


@EXECUTORS
@pytest.mark.parametrize("name", ["add", "step", "abort"])
def test_ctrl_c_before_any_line_of_an_engine_s_call_does_it_whole_or_not_at_all(
    small, prompts, wanted, name, async_scheduling
):
    settings = {"num_blocks": 9, "max_num_seqs": 3, "max_num_batched_tokens": 16, "enforce_eager": True}
    number = raised = 0
    while True:
        engine = engine_of(small, async_scheduling, **settings)
        seqs, calls = engine_calls(engine, prompts)
        try:
            with AtLine(number, press) as at:
                calls[name]()
        except KeyboardInterrupt:
            raised += 1
        if not at.where:
            break
        engine.blocks.check()
        while engine.has_work:
            engine.step()
        engine.blocks.check()
        assert engine.blocks.num_free == 9 and not engine.metrics.times._live, at.where
        for seq, ids in zip(seqs, wanted, strict=True):
            if seq.finish_reason != "abort":
                assert seq.output_ids in ([], ids), at.where
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
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        press()
        with interruptible():
            seen.append("never")
    with pytest.raises(KeyboardInterrupt), deferred_interrupts(), interruptible():
        press()
        seen.append("never")
    assert len(seen) == 2 and signal.getsignal(signal.SIGINT) is handler
    with interruptible(), pytest.raises(KeyboardInterrupt):
        press()


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


def test_a_long_forward_is_interrupted_at_once(small):
    llm = llm_of(small, False)
    layers = []

    def late(module, inputs):
        layers.append(module)
        if len(layers) == 1:
            press()

    hooks = [block.register_forward_pre_hook(late) for block in small.h]
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate([[1, 2, 3]], params(3), use_tqdm=False)
    finally:
        for hook in hooks:
            hook.remove()
    assert len(layers) == 1 and llm.engine.blocks.num_free == 9


# The garbage collector


@EXECUTORS
def test_streams_that_the_garbage_collector_ends_at_any_line_of_a_step(small, prompts, wanted, async_scheduling):
    llm = llm_of(small, async_scheduling)

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


# Threads, and calls from inside a call


@EXECUTORS
def test_one_thread_at_a_time_and_the_others_hear_why(small, prompts, wanted, async_scheduling):
    """Four threads, forty calls each: a call is right, or it was refused and has changed nothing."""
    llm = llm_of(small, async_scheduling)
    refused, wrong, num_right = [], [], []

    def call(which: int) -> None:
        for i in range(40):
            try:
                if i % 4:
                    [output] = llm.generate([prompts[which]], params(4), use_tqdm=False)
                else:
                    *_, output = llm.stream([prompts[which]], params(4))
            except RuntimeError as error:
                refused.append(str(error))
            except BaseException as error:
                wrong.append(error)
            else:
                ids = output.outputs[0].token_ids
                num_right.append(ids) if ids == wanted[which][:4] else wrong.append(ids)

    threads = [threading.Thread(target=call, args=[which]) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(num_right) + len(refused) == 160 and num_right
    assert all(message.startswith("LLM is in use by another thread") for message in refused)
    assert_whole(llm, prompts, wanted, "")


def test_who_comes_second_is_refused_and_the_first_goes_on(small, prompts, wanted):
    llm, inside, refused = llm_of(small, False), threading.Event(), threading.Event()
    forward = llm.engine.runner.forward

    def slow(batch):
        inside.set()
        assert refused.wait(60)
        return forward(batch)

    llm.engine.runner.forward = slow
    outputs = []
    first = threading.Thread(target=lambda: outputs.extend(llm.generate(prompts, params(9), False)), name="server")
    first.start()
    assert inside.wait(60)
    message = (
        r"^LLM is in use by another thread \('server'\), whose call goes on: one thread at a time may call it. "
        "Make all calls in one thread, put a lock around them, or give each thread its own LLM$"
    )
    stream = llm.stream(prompts[0], params(3))
    for call in (
        lambda: llm.generate(prompts[0], params(3), use_tqdm=False),
        lambda: next(stream),
        lambda: llm.abort("0"),
        llm.reset_prefix_cache,
    ):
        with pytest.raises(RuntimeError, match=message):
            call()
    with pytest.raises(RuntimeError, match="^Engine is in use by another thread"):
        llm.engine.step()
    llm.stream(prompts[0], params(3)).close()
    refused.set()
    first.join()
    assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert next(stream).outputs[0].token_ids == wanted[0][:1], "a stream that was refused can be asked again"


def test_threads_may_take_turns(small, prompts, wanted):
    llm = llm_of(small, True)
    for _ in range(3):
        outputs = []
        thread = threading.Thread(target=lambda: outputs.extend(llm.generate(prompts, params(9), False)))  # noqa: B023
        thread.start()
        thread.join()
        assert [output.outputs[0].token_ids for output in outputs] == wanted


def test_a_call_from_inside_a_call_is_refused(small, prompts, wanted):
    """A policy, say, that asks the LLM which it serves."""
    llm, heard = llm_of(small, False), []
    other = llm.stream(prompts[1], params(9))
    next(other)
    pick = llm.engine.scheduler.policy.pick

    def asks(waiting, room):
        other.close()
        try:
            llm.generate(prompts[0], params(1), use_tqdm=False)
        except RuntimeError as error:
            heard.append(str(error))
        return pick(waiting, room)

    llm.engine.scheduler.policy.pick = asks
    outputs = llm.generate(prompts, params(9), use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert heard and set(heard) == {
        "LLM is in the middle of a call in this thread: a scheduling policy, a finalizer or a signal handler that runs "
        "inside it cannot make another one. Make it when the first one has returned"
    }
    llm.engine.scheduler.policy.pick = pick
    assert_whole(llm, prompts, wanted, "")
    assert next(other, None) is None


def test_streams_and_calls_inside_each_other_s_loops(small, prompts, wanted):
    llm = llm_of(small, True)
    seen = {}
    for outer in llm.stream(prompts[:2], params(9)):
        for inner in llm.stream([prompts[2]], params(2)):
            seen[2] = inner.outputs[0].token_ids
        [output] = llm.generate([prompts[3]], params(2), use_tqdm=False)
        assert output.outputs[0].token_ids == wanted[3][:2] and seen[2] == wanted[2][:2]
        seen[prompts.index(outer.prompt_token_ids)] = outer.outputs[0].token_ids
    assert [seen[0], seen[1]] == wanted[:2]
    assert_whole(llm, prompts, wanted, "")


def test_a_call_that_fails_lets_the_next_one_in():
    calls = OneCaller("It")
    with pytest.raises(MemoryError), calls.call():
        raise MemoryError
    with calls.call(), pytest.raises(RuntimeError, match="^It is in the middle of a call"), calls.call():
        pass
