"""Every wait of a request has a limit, and a place of its own: what hangs holds up nothing of another kind."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import permutations
from subprocess import Popen
from typing import Any

import pytest
from running import DEADLINE, SIZES, Gate, Running, running_server

from roseinfer.llm.grammar import MOST_CHARACTERS

pytestmark = pytest.mark.slow

SHORT = {"prompt": "If", "max_tokens": 6}
CHAT = {"messages": [{"role": "user", "content": "If"}], "max_tokens": 6}
STRUCTURED = {"prompt": [499], "max_tokens": 6, "structured_outputs": {"choice": ["yes", "no"]}}
# Each pattern is compared with each other one, which takes a minute.
PATTERNS = {f"^{word}.*[a-z]$": {} for word in map("".join, list(permutations("abcdefg", 5))[::5])}
SLOW_SCHEMA = {"type": "object", "patternProperties": PATTERNS}
PLACES = SIZES["max_num_seqs"] + 2  # with max_queue=2


@pytest.fixture
def chatty(chatty, monkeypatch) -> Running:
    """The one of conftest.py, with a short queue."""
    monkeypatch.setattr(chatty.engine, "max_queue", 2)
    return chatty


class Held:
    """Calls of a function that wait until they may go on. num_begun: of them."""

    def __init__(self, call: Callable[..., Any], is_held: Callable[..., bool]) -> None:
        self._call, self._is_held = call, is_held
        self.num_begun = 0
        self._go = threading.Event()

    def __call__(self, *arguments: Any, **settings: Any) -> Any:
        if self._is_held(*arguments, **settings):
            self.num_begun += 1
            assert self._go.wait(DEADLINE), "it was never let go"
        return self._call(*arguments, **settings)

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def held(owner: object, name: str, is_held: Callable[..., bool] = lambda *_, **__: True) -> Iterator[Held]:
    """Calls of a method wait inside the block."""
    calls = Held(getattr(owner, name), is_held)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, calls)
        try:
            yield calls
        finally:
            calls.let_go()


@contextmanager
def stopped_template(server: Running) -> Iterator[Popen]:
    """The template's process, which is stopped inside the block."""
    process = server.server.service.prompts._template._renderer._process
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGCONT)


KINDS = {
    "a text": ("/v1/completions", SHORT, lambda server: held(server.llm, "prompt_ids")),
    "a conversation": ("/v1/chat/completions", CHAT, stopped_template),
    "a grammar": ("/v1/completions", STRUCTURED, lambda server: held(server.llm, "new_request")),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_has_its_place_from_the_moment_it_is_accepted(chatty, kind, stream):
    path, body, holding = KINDS[kind]
    with holding(chatty):
        refused = chatty.engine.num_refused
        accepted = [chatty.post(path, body | {"stream": stream}) for _ in range(PLACES)]
        chatty.wait_for(lambda: len(chatty.engine.streams) == PLACES)
        status, answer = chatty.ask(path, body)
        assert (status, answer["error"]["code"]) == (429, "queue_full") and chatty.engine.num_refused == refused + 1
        assert chatty.ask("/health")[0] == 200
        for one in accepted:
            one.close()
        chatty.wait_for(lambda: not chatty.engine.streams)


@pytest.mark.parametrize(("kind", "num_threads"), [("a text", 2), ("a grammar", 1)])
def test_work_of_a_client_that_has_gone_is_not_begun(chatty, kind, num_threads):
    path, body, holding = KINDS[kind]
    with holding(chatty) as calls:
        first = [chatty.post(path, body) for _ in range(num_threads)]
        chatty.wait_for(lambda: calls.num_begun == num_threads)
        for i in range(3 * PLACES):  # more than may wait at a time: each one that goes makes room for the next
            with chatty.post(path, body | {"stream": bool(i % 2)}):
                chatty.wait_for(lambda: len(chatty.engine.streams) == num_threads + 1)
            chatty.wait_for(lambda: len(chatty.engine.streams) == num_threads)
        calls.let_go()
        assert all(one.recv(65536).startswith(b"HTTP/1.1 200 OK") for one in first)
        assert chatty.ask(path, body)[0] == 200
        assert calls.num_begun == num_threads + 1
        for one in first:
            one.close()


def test_an_error_for_a_client_that_has_gone_is_not_logged(chatty, caplog):
    with held(chatty.llm, "prompt_ids") as calls:
        with chatty.post("/v1/completions", SHORT | {"prompt": ""}):
            chatty.wait_for(lambda: calls.num_begun == 1)
        chatty.wait_for(lambda: not chatty.engine.streams)
    assert chatty.ask("/v1/completions", SHORT)[0] == 200
    gc.collect()
    assert not caplog.records


def test_of_many_prompts_none_is_begun_after_the_client_has_gone(chatty):
    with held(chatty.llm, "prompt_ids") as calls:
        with chatty.post("/v1/completions", SHORT | {"prompt": ["If"] * PLACES}):
            chatty.wait_for(lambda: calls.num_begun == 1)
        chatty.wait_for(lambda: not chatty.engine.streams)
    assert chatty.ask("/v1/completions", SHORT)[0] == 200
    assert calls.num_begun == 1


@pytest.mark.parametrize("kind", ["a conversation", "a grammar"])
def test_what_hangs_delays_only_its_own_kind(chatty, offline, kind):
    path, body, _ = KINDS[kind]
    is_structured = lambda ids, params: params.structured_outputs is not None  # noqa: E731
    with stopped_template(chatty) if kind == "a conversation" else held(chatty.llm, "new_request", is_structured):
        hanging = [chatty.post(path, body) for _ in range(4)]
        chatty.wait_for(lambda: len(chatty.engine.streams) == 4)
        status, answer = chatty.ask("/v1/completions", SHORT)
        assert status == 200 and answer["choices"][0]["text"] == offline.text("If", max_tokens=6)
        for one in hanging:
            one.close()


def test_a_stopped_template_is_started_again(chatty, monkeypatch):
    monkeypatch.setattr(chatty.server.service.prompts._template._renderer, "seconds", 1)
    monkeypatch.setattr("roseinfer.llm.worker.SPARE_SECONDS", 0)
    with stopped_template(chatty):
        status, answer = chatty.ask("/v1/chat/completions", CHAT)
        assert status == 400 and "it was ended, since it took more than 1 s" in answer["error"]["message"]
    assert chatty.ask("/v1/chat/completions", CHAT)[0] == 200


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_not(chatty, monkeypatch):
    assert chatty.ask("/v1/completions", STRUCTURED)[0] == 200
    monkeypatch.setattr(chatty.server.service.prompts._grammar_worker, "seconds", 0.5)
    status, answer = chatty.ask("/v1/completions", SHORT | {"structured_outputs": {"json": SLOW_SCHEMA}})
    why = "structured_outputs cannot be compiled: it was ended, since it took more than 0.5 s or too much memory"
    assert (status, answer["error"]["message"]) == (400, why)
    monkeypatch.undo()
    assert chatty.ask("/v1/completions", STRUCTURED)[0] == 200


def test_a_request_whose_turn_does_not_come_is_told_to_come_again(chatty, monkeypatch):
    monkeypatch.setattr("roseinfer.server.lane.TURN_SECONDS", 0.3)
    with held(chatty.llm, "prompt_ids") as calls, ThreadPoolExecutor() as pool:
        first = [pool.submit(chatty.ask, "/v1/completions", SHORT) for _ in range(2)]
        chatty.wait_for(lambda: calls.num_begun == 2)
        status, text, headers = chatty.exchange("/v1/completions", SHORT)
        assert (status, json.loads(text)["error"]["code"]) == (429, "queue_full") and int(headers["Retry-After"]) >= 1
        calls.let_go()
        assert [one.result(DEADLINE)[0] for one in first] == [200, 200]


@pytest.mark.parametrize(
    "wanted",
    [
        {"choice": ["a" * MOST_CHARACTERS]},
        {"regex": "a" * (MOST_CHARACTERS + 1)},
        {"grammar": "start: " + "a" * MOST_CHARACTERS},
        {"json": {"enum": ["a" * 1000] * 310}},
    ],
    ids=list,
)
def test_a_grammar_that_is_too_large_is_400(chatty, wanted):
    status, answer = chatty.ask("/v1/completions", SHORT | {"structured_outputs": wanted})
    [name] = wanted
    assert status == 400 and f"{name} has 3" in (why := answer["error"]["message"])
    assert why.endswith("characters, allowed: at most 300,000")


@pytest.mark.parametrize("named", ["<|endoftext|>", "<[2000]>", "<nowhere>", "<[9999]>"])
def test_no_token_that_a_grammar_names_leads_past_the_limit_of_time(chatty, monkeypatch, named):
    """The engine's compiler knows the model's tokens, and nothing can break it off: it may begin only after the process
    with the limit has come to the end of the same grammar."""
    assert chatty.ask("/v1/completions", STRUCTURED)[0] == 200
    monkeypatch.setattr(chatty.llm, "new_request", lambda *_: pytest.fail("the engine's compiler has begun"))
    monkeypatch.setattr(chatty.server.service.prompts._grammar_worker, "seconds", 0.5)
    grammar = f"start: {named} | slow\nslow: %json {json.dumps(SLOW_SCHEMA)}"
    status, answer = chatty.ask("/v1/completions", SHORT | {"structured_outputs": {"grammar": grammar}})
    assert status == 400 and "structured_outputs cannot be " in answer["error"]["message"]


@pytest.mark.parametrize("named", ["<|endoftext|>", "<[2000]>", "<[1-2047]>"])
def test_a_grammar_may_name_tokens_of_the_model(chatty, named):
    grammar = {"grammar": f'start: "a" {named}'}
    assert chatty.ask("/v1/completions", SHORT | {"structured_outputs": grammar})[0] == 200


@pytest.mark.parametrize("num_signals", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_end_cuts_off_what_was_accepted_and_has_not_begun(folder, num_signals):
    """After the limit, or at the second signal: one request of each kind hangs."""
    with running_server(folder, drain_seconds=0.3 if num_signals == 1 else DEADLINE) as running:
        with ExitStack() as holding, ThreadPoolExecutor() as pool:
            what_hangs = {kind: holding.enter_context(hold(running)) for kind, (_, _, hold) in KINDS.items()}
            answers = [pool.submit(running.ask, path, body) for path, body, _ in KINDS.values()]
            running.wait_for(lambda: len(running.engine.streams) == len(KINDS))
            for _ in range(num_signals):
                running.server.handle_exit(signal.SIGTERM, None)
            told = [answer.result(DEADLINE) for answer in answers]
            assert [(status, body["error"]["code"]) for status, body in told] == [(503, "not_serving")] * len(KINDS)
            running.wait_for(lambda: not running.thread.is_alive())
        assert "3 requests cut off" in running.said and "every request has ended" not in running.said
        assert what_hangs["a conversation"].poll() is not None, "its process was left behind"
        assert not running.server.has_ended, "a thread is still at work"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asks", [{}, {"logprobs": 1}, {"echo": True}], ids=str)
def test_the_end_may_come_in_the_moment_in_which_the_prompts_are_read(drained, monkeypatch, asks, stream):
    prompts, read = drained.server.service.prompts, drained.server.service.prompts.of_prompts

    async def read_until_the_end(*given):
        requests = await read(*given)
        await drained.engine.drain(0)
        return requests

    monkeypatch.setattr(prompts, "of_prompts", read_until_the_end)
    _, text, _ = drained.exchange("/v1/completions", SHORT | asks | {"stream": stream})
    error = json.loads(text.removeprefix("data: ").split("\n\n")[0])["error"]
    assert error["code"] == "not_serving"


def test_a_step_that_hangs_makes_health_fail_until_it_ends(server, monkeypatch):
    monkeypatch.setattr(server.engine, "_step_seconds", 0.1)
    with Gate(server) as gate:
        waits = server.post("/v1/completions", SHORT)
        server.wait_for(lambda: server.ask("/health") == (503, {"status": "stuck"}))
        assert server.ask("/live")[1]["status"] == "stuck"
        gate.open()
        assert waits.recv(65536).startswith(b"HTTP/1.1 200 OK")
        waits.close()
        assert server.ask("/health") == (200, {"status": "ready"})
