"""One call at a time: other threads, and calls from inside a call, are refused in words, and the first one goes on."""

from __future__ import annotations

import threading

import pytest
from served import params
from small_engines import engine_of
from tight_llm import EXECUTORS, assert_whole, llm_of

from roseinfer.drive import drive
from roseinfer.engine.calls import OneCaller
from roseinfer.sequence import Sequence

pytestmark = pytest.mark.slow


@EXECUTORS
def test_one_thread_at_a_time_and_the_others_hear_why(small, prompts, wanted, async_scheduling):
    """Four threads, forty calls each: a call is right, or it was refused and has changed nothing."""
    llm = llm_of(small, async_scheduling=async_scheduling)
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
    llm, inside, refused = llm_of(small, async_scheduling=False), threading.Event(), threading.Event()
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
    llm.stream(prompts[0], params(3)).close()
    refused.set()
    first.join()
    assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert next(stream).outputs[0].token_ids == wanted[0][:1], "a stream that was refused can be asked again"


def test_a_call_from_inside_a_call_is_refused(small, prompts, wanted):
    """A policy, say, that asks the LLM which it serves."""
    llm, heard = llm_of(small, async_scheduling=False), []
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


def test_an_engine_without_an_llm_guards_itself(small, prompts):
    engine = engine_of(small, [Sequence(prompts[0], params(3))])
    schedule = engine.scheduler.schedule

    def asks():
        with pytest.raises(RuntimeError, match="^Engine is in the middle of a call in this thread"):
            engine.step()
        return schedule()

    engine.scheduler.schedule = asks
    assert list(drive(engine)) and not engine.has_work


def test_a_call_that_fails_lets_the_next_one_in():
    calls = OneCaller("It")
    with pytest.raises(MemoryError), calls.call():
        raise MemoryError
    with calls.call(), pytest.raises(RuntimeError, match="^It is in the middle of a call"), calls.call():
        pass
