"""What may be done to a connection: headers that come slowly or never end, idle ones, too many, no HTTP, a key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from running import running_server

from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow

BODY = {"prompt": "If", "max_tokens": 2}
KEY = {"Authorization": "Bearer rose-key"}
TEMPLATE = "{{ messages[0].content }}"


def answer_of(connection) -> tuple[int, dict]:
    """(status, error) of the one answer on a connection that the server then closes."""
    data = b""
    while part := connection.recv(65536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.fixture(scope="module")
def strict():
    """A server that waits for little."""
    with running_server(header_seconds=0.3, body_seconds=0.3, max_header_kib=4, max_body_kib=8) as running:
        yield running


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_slow_headers_are_408(strict, sent):
    with strict.connect() as connection:
        connection.sendall(sent)
        status, error = answer_of(connection)
    assert status == 408 and "headers of a request must be there within 0.3 s" in error["message"]


def test_slow_headers_of_a_second_request_are_408_too(strict):
    with strict.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET /health HTTP/1.1\r\nHo")
        assert answer_of(connection)[0] == 408


def test_a_slow_body_is_408(strict):
    with strict.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        status, error = answer_of(connection)
    assert status == 408 and "body must be there within 0.3 s" in error["message"]


@pytest.mark.parametrize(
    "header", [b"X-Long: " + b"a" * 5000 + b"\r\n\r\n", b"X-A: b\r\n" * 600 + b"\r\n", b"a" * 9000]
)
def test_long_headers_are_431(strict, header):
    with strict.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + header)
        status, error = answer_of(connection)
    assert status == 431 and "at most 4 KiB" in error["message"]


@pytest.mark.parametrize("told", [True, False])
def test_a_large_body_is_413_whether_or_not_its_length_is_told(strict, told):
    length = b"Content-Length: 9000\r\n\r\n" if told else b"Transfer-Encoding: chunked\r\n\r\n2328\r\n"
    with strict.connect() as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + length + b"a" * 9000)
        status, error = answer_of(connection)
    assert status == 413 and "at most 8 KiB" in error["message"]


@pytest.mark.parametrize(
    "sent", [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"GET \xff HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_400(strict, sent):
    with strict.connect() as connection:
        connection.sendall(sent)
        status, error = answer_of(connection)
    assert status == 400 and "not HTTP/1.1" in error["message"]


def test_a_thousand_idle_connections_hold_up_no_request(server, offline):
    idle = [server.connect() for _ in range(1000)]
    status, answer = server.ask("/v1/completions", BODY)
    assert status == 200 and answer["choices"][0]["text"] == offline.text("If", max_tokens=2)
    for one in idle:
        one.close()


def test_one_connection_too_many_is_503(server, monkeypatch):
    connections = server.server.server_state.connections
    server.wait_for(lambda: not connections)
    few = replace(server.server.settings, max_connections=3)
    monkeypatch.setattr(server.server.config.http_protocol_class, "settings", few)
    held = [server.connect() for _ in range(3)]
    server.wait_for(lambda: len(connections) == 3)
    with server.connect() as connection:
        status, error = answer_of(connection)
    assert status == 503 and "3 connections are open" in error["message"]
    for one in held:
        one.close()
    server.wait_for(lambda: not connections)
    assert server.ask("/health")[0] == 200


@pytest.mark.nightly
def test_a_client_that_takes_nothing_is_cut_off_in_the_end():
    with running_server(send_seconds=0.3) as hasty:
        connections = hasty.server.server_state.connections
        with hasty.connect() as connection:
            connection.setsockopt(1, 8, 2048)  # a receive buffer that is full soon
            wish = {"prompt": ["If"] * 250, "max_tokens": 8, "ignore_eos": True, "logprobs": 20, "stream": True}
            body = json.dumps(wish)
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            hasty.wait_for(lambda: len(connections) == 1)
            hasty.wait_for(lambda: not connections)
        hasty.wait_until_idle()


# The key, a template, and names


@pytest.fixture(scope="module")
def locked():
    with running_server(api_key="rose-key", chat_template=TEMPLATE, allowed_hosts=["rose.example"]) as running:
        yield running


GUARDED = ["/v1/completions", "/v1/models", "/generate", "/tokenize", "/detokenize", "/live", "/models/tiny/generate"]
WRONG_KEYS = ["", "rose-key", "Bearer", "Bearer rose-ke", "Bearer rose-key2", "Basic rose-key"]


@pytest.mark.parametrize(
    ("path", "sent"), [(path, None) for path in GUARDED] + [("/v1/completions", key) for key in WRONG_KEYS]
)
def test_without_the_key_it_is_401(locked, path, sent):
    status, text, headers = locked.exchange(path, **({} if sent is None else {"Authorization": sent}))
    error = json.loads(text)["error"]
    assert (status, error["code"]) == (401, "invalid_api_key") and headers["WWW-Authenticate"] == "Bearer"
    assert "rose-key" not in error["message"]


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bEaReR "])
def test_with_the_key_it_answers(locked, scheme):
    assert locked.ask("/v1/completions", BODY, Authorization=f"{scheme} rose-key")[0] == 200


@pytest.mark.parametrize("path", ["/health", "/metrics", "/"])
def test_what_needs_no_key(locked, path):
    assert locked.exchange(path)[0] == 200


def test_a_key_that_none_asked_for_is_ignored(server):
    assert server.ask("/v1/completions", BODY, Authorization="Bearer any")[0] == 200


def test_a_server_may_have_a_template_in_place_of_the_models(locked, offline):
    messages = [{"role": "user", "content": "Return a new"}]
    _, answer = locked.ask("/v1/chat/completions", {"messages": messages, "max_tokens": 4}, **KEY)
    told = offline.llm.chat(messages, SamplingParams(max_tokens=4), chat_template=TEMPLATE, use_tqdm=False)
    assert answer["choices"][0]["message"]["content"] == told[0].outputs[0].text


@pytest.mark.parametrize(
    "path", ["/", "/health", "/metrics", "/live", "/v1/models", "/v1/completions", "/openapi.json"]
)
def test_no_path_answers_another_host(server, path):
    status, text, _ = server.exchange(path, Host="evil.example")
    assert status == 403
    assert "'evil.example'" in json.loads(text)["error"]["message"] and "--allowed-hosts" in text


def test_a_server_answers_under_the_names_that_were_added(locked):
    assert locked.ask("/health", Host="rose.example")[0] == 200
    assert locked.ask("/health", Host="evil.example")[0] == 403
