"""What servers meet: clients that go, or read slowly; a full queue; a step that fails; an end in the middle."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from running import DEADLINE, SIZES, Gate, Running

from roseinfer.llm.llm import LLM
from roseinfer.server.run import EngineServer, Serving, listen, make_server, url_of
from roseinfer.server.settings import ServerSettings

pytestmark = pytest.mark.slow

LONG = {"prompt": "Return a new", "max_tokens": 400, "ignore_eos": True}
SHORT = {"prompt": "If", "max_tokens": 6}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", ["waiting", "running"])
def test_a_client_that_goes_frees_its_blocks_before_the_next_step(server, when, stream):
    with Gate(server) as gate:
        others = [server.post("/v1/completions", LONG | {"prompt": f"{i}"}) for i in range(SIZES["max_num_seqs"])]
        server.wait_for(lambda: len(server.engine.streams) == 4)
        gone = others[0]
        if when == "waiting":
            gone = server.post("/v1/completions", LONG | {"stream": stream})
            server.wait_for(lambda: len(server.engine.streams) == 5)
            others.append(gone)
        before = len(server.engine.streams)
        gone.close()
        server.wait_for(lambda: len(server.engine.streams) == before - 1)
        others.remove(gone)
        steps = server.llm.engine.metrics.num_steps
        blocks = server.llm.engine.blocks
        gate.open()
        server.wait_for(lambda: server.llm.engine.metrics.num_steps >= steps + 2)
        assert len(blocks) <= len(server.engine.streams)
        for one in others:
            one.close()
    server.wait_until_idle()
    assert server.engine.latencies.ended_by["abort"] >= 5 - (when == "running")


def test_a_client_that_reads_nothing_holds_up_no_other(server, offline):
    slow = server.post("/v1/completions", LONG | {"stream": True})
    server.wait_for(lambda: len(server.engine.streams) == 1)
    status, answer = server.ask("/v1/completions", SHORT)
    assert status == 200 and answer["choices"][0]["text"] == offline.text("If", max_tokens=6)
    server.wait_until_idle()  # the slow one's answer is complete, unread
    data = b""
    while not data.endswith(b"0\r\n\r\n"):
        data += slow.recv(65536)
    slow.close()
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == offline.text("Return a new", max_tokens=400, ignore_eos=True)


def test_a_full_queue_is_429_and_says_when_to_come_again(server, monkeypatch):
    monkeypatch.setattr(server.engine, "max_queue", 2)
    refused = server.engine.num_refused
    with Gate(server) as gate:
        waiting = [server.post("/v1/completions", SHORT) for _ in range(6)]
        server.wait_for(lambda: len(server.engine.streams) == 6)
        for stream in (False, True):
            status, text, headers = server.exchange("/v1/completions", SHORT | {"stream": stream})
            error = json.loads(text)["error"]
            assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "queue_full")
            assert 1 <= int(headers["Retry-After"]) <= 60
        assert server.engine.num_refused == refused + 2
        gate.open()
        for one in waiting:
            assert one.recv(65536).startswith(b"HTTP/1.1 200 OK")
            one.close()
    assert server.ask("/v1/completions", SHORT)[0] == 200
    status, answer = server.ask("/v1/completions", SHORT | {"n": 7, "temperature": 1})
    assert status == 400 and "7 samples, and 6" in answer["error"]["message"]


def test_a_step_that_fails_ends_its_requests_and_no_other(server, offline):
    whole, streamed, later = SHORT, SHORT | {"prompt": "None", "stream": True}, SHORT | {"prompt": "Return a new"}
    with ThreadPoolExecutor() as pool, Gate(server) as gate:
        gate.failures.append(RuntimeError("the device has gone"))
        failing = [pool.submit(server.exchange, "/v1/completions", body) for body in (whole, streamed, whole, whole)]
        server.wait_for(lambda: len(server.engine.streams) == 4)
        waits = pool.submit(server.ask, "/v1/completions", later)
        server.wait_for(lambda: len(server.engine.streams) == 5)
        gate.open()
        answers = [one.result(DEADLINE) for one in failing]
        # The first one was in the step alone, or with others: each is either failed by name, or complete.
        failed = [text for status, text, _ in answers if "the device has gone" in text]
        assert failed and all("RuntimeError" in text for text in failed)
        for (status, text, _), body in zip(answers, (whole, streamed, whole, whole), strict=True):
            if "the device has gone" in text:
                assert status == (200 if body.get("stream") else 500)
            else:
                assert status == 200
        assert waits.result(DEADLINE)[1]["choices"][0]["text"] == offline.text("Return a new", max_tokens=6)
    server.wait_until_idle()
    assert server.ask("/health") == (200, {"status": "ready"})
    assert server.ask("/v1/completions", SHORT)[1]["choices"][0]["text"] == offline.text("If", max_tokens=6)


def test_a_bug_is_500_and_tells_no_more(server, monkeypatch):
    def broken(*_):
        raise KeyError("secret")

    monkeypatch.setattr("roseinfer.server.service.PromptReader.of_prompts", broken)
    status, answer = server.ask("/v1/completions", SHORT)
    assert (status, answer["error"]["code"]) == (500, "internal_error") and "secret" not in json.dumps(answer)


def test_llm_in_another_thread_says_whose_it_is(server):
    with pytest.raises(RuntimeError, match="LLM is in use by another thread .'roseinfer engine'."):
        server.llm.generate("If")


def test_draining_refuses_new_work_and_ends_what_runs(drained, offline):
    with Gate(drained) as gate:
        running = drained.post("/v1/completions", SHORT)
        drained.wait_for(lambda: len(drained.engine.streams) == 1)
        end = asyncio.run_coroutine_threadsafe(drained.engine.drain(DEADLINE), drained.server.loop)
        drained.wait_for(lambda: drained.engine.status == "draining")
        status, text, headers = drained.exchange("/v1/completions", SHORT)
        assert (status, json.loads(text)["error"]["code"]) == (503, "not_serving") and headers["Retry-After"]
        assert drained.ask("/health") == (503, {"status": "draining"})
        gate.open()
        assert end.result(DEADLINE) == 0
        answer = running.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 OK") and json.dumps(offline.text("If", max_tokens=6)).encode() in answer
        running.close()


def test_what_does_not_end_in_time_is_cut_off_with_an_error(drained):
    with Gate(drained) as gate:
        streamed = drained.post("/v1/completions", LONG | {"stream": True}, "Connection: close\r\n")
        data = streamed.recv(65536)  # it has begun
        end = asyncio.run_coroutine_threadsafe(drained.engine.drain(0), drained.server.loop)
        assert end.result(DEADLINE) == 1
        gate.open()
        while piece := streamed.recv(65536):
            data += piece
        assert b'"error"' in data and b"shutting down" in data and b"[DONE]" not in data
        streamed.close()


def started(make_llm) -> tuple[EngineServer, Running, threading.Thread]:
    """A server that may not have loaded its model yet, or has failed to."""
    listening = listen("127.0.0.1", 0)
    server = make_server(Serving(make_llm=make_llm, model_name="tiny"), ServerSettings(), lambda text: None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    running = Running(server, url_of(listening))
    running.wait_for(lambda: server.started)
    return server, running, thread


def test_it_says_so_before_it_is_warm_and_after_a_bug_on_the_engines_thread_which_hangs_no_request(monkeypatch):
    go = threading.Event()

    def slowly() -> LLM:
        assert go.wait(DEADLINE)
        return LLM("tiny", **SIZES)

    server, running, thread = started(slowly)
    assert running.ask("/health") == (503, {"status": "loading"})
    status, answer = running.ask("/v1/completions", SHORT)
    assert status == 503 and "still being loaded" in answer["error"]["message"]
    assert running.ask("/live")[1]["status"] == "loading" and running.exchange("/metrics")[0] == 200
    assert running.ask("/v1/models")[1]["data"][0].keys() == {"id", "object", "created", "owned_by"}
    go.set()
    running.wait_for(lambda: server.was_ready)
    assert running.ask("/health")[0] == 200
    monkeypatch.setattr(server.engine, "_tell", lambda: 1 / 0)
    status, answer = running.ask("/v1/completions", SHORT)
    assert status == 503 and "engine has failed" in answer["error"]["message"]
    thread.join(DEADLINE)
    assert not thread.is_alive() and isinstance(server.failure, ZeroDivisionError)


def test_a_model_that_cannot_be_loaded_ends_the_server():
    def fails() -> LLM:
        raise ValueError("no such model")

    server, _, thread = started(fails)
    thread.join(DEADLINE)
    assert not thread.is_alive() and str(server.failure) == "no such model" and not server.was_ready
