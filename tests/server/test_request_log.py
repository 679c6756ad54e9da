"""An id for each request, in every answer and in the log; a line for each request, where --access-log asks for it."""

from __future__ import annotations

import json
import re

import openai
import pytest
from running import Gate, Running, running_server

from roseinfer.server.greeting import greeting
from roseinfer.server.request_id import id_of
from roseinfer.server.request_log import log_line
from roseinfer.server.settings import ServerSettings

slow = pytest.mark.slow

BODY = {"prompt": "If", "max_tokens": 2}
NEW_ID = re.compile("req-[0-9a-f]{32}")
OF_ALL_KINDS = [
    ("/v1/completions", BODY, 200),
    ("/v1/completions", BODY | {"stream": True}, 200),
    ("/", None, 200),
    ("/health", None, 200),
    ("/metrics", None, 200),
    ("/nothing", None, 404),
    ("/v1/completions", None, 405),
    ("/v1/completions", b"{", 400),
    ("/v1/completions", b" " * 1_100_000, 413),
]


@slow
@pytest.mark.parametrize(("path", "body", "status"), OF_ALL_KINDS)
def test_every_answer_has_an_id(server, path, body, status):
    got, _, headers = server.exchange(path, body)
    assert got == status and NEW_ID.fullmatch(headers["x-request-id"])
    *_, headers = server.exchange(path, body, **{"X-Request-Id": "trace-7.a:b"})
    assert headers["x-request-id"] == "trace-7.a:b"


@pytest.mark.parametrize("given", [b"", b"a b", b"a\x1b[0m", "\u00e4".encode(), b"a" * 129, b'"'])
def test_an_id_that_could_be_no_header_or_would_spoil_a_log_is_replaced(given):
    assert NEW_ID.fullmatch(id_of([(b"x-request-id", given)]))


@slow
def test_the_official_client_reads_it(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        assert NEW_ID.fullmatch(client.completions.create(model="tiny", **BODY)._request_id)
        with pytest.raises(openai.NotFoundError) as wrong:
            client.completions.create(model="gpt-4", **BODY)
        assert NEW_ID.fullmatch(wrong.value.request_id)


@slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_servers_own_names_the_request(server, stream, caplog):
    with Gate(server) as gate:
        gate.failures.append(RuntimeError("a worn-out step"))
        gate.open()
        _, text, _ = server.exchange("/v1/completions", BODY | {"stream": stream}, **{"X-Request-Id": "trace-8"})
    assert json.loads(text.removeprefix("data: ").split("\n\n")[0])["error"]["message"].endswith("(request trace-8)")
    assert "1 request with it: trace-8" in caplog.text


@slow
def test_a_bug_is_answered_and_logged_with_the_id(server, caplog, monkeypatch):
    monkeypatch.setattr(type(server.engine), "require_serving", lambda self: 1 / 0)
    status, text, headers = server.exchange("/v1/completions", BODY)
    assert status == 500 and headers["x-request-id"] in json.loads(text)["error"]["message"]
    assert headers["x-request-id"] in caplog.text


@slow
def test_a_log_has_a_line_for_each_request_and_no_secret(capsys):
    with running_server(access_log=True, api_key="rose-key") as logged:
        for path, body, status in OF_ALL_KINDS:
            assert logged.exchange(f"{path}?token=rose-query", body, Authorization="Bearer rose-key")[0] == status
        gone(logged)
        gone_within_its_body(logged)
        lines = [line for line in capsys.readouterr().err.splitlines() if " req-" in line]
    form = re.compile(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1 (GET|POST) (\S+) (\d{3}) \d+\.\d{3} s req-\w{32}"
    )
    found = [form.fullmatch(line).groups() for line in lines]
    assert found[:-2] == [("GET" if body is None else "POST", path, str(status)) for path, body, status in OF_ALL_KINDS]
    assert found[-2:] == [("POST", "/v1/completions", "499")] * 2
    assert "rose-" not in "".join(lines)


KEY = "Authorization: Bearer rose-key\r\n"


def gone(logged: Running) -> None:
    """Ask, and leave before there is an answer."""
    with Gate(logged) as gate:
        with logged.post("/v1/completions", BODY, KEY):
            logged.wait_for(lambda: len(logged.engine.streams) == 1)
        logged.wait_for(lambda: not logged.engine.streams)
        gate.open()


def gone_within_its_body(logged: Running) -> None:
    connections = logged.server.server_state.connections
    with logged.connect() as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{KEY}Content-Length: 9\r\n\r\n"
        connection.sendall(f"{head}{{".encode())
        logged.wait_for(lambda: len(logged.server.server_state.tasks) == 1)
    logged.wait_for(lambda: not connections and not logged.server.server_state.tasks)


def test_a_line_of_a_strange_request():
    scope = {"method": "GET", "raw_path": b"/a%20b/\xff", "client": None}
    assert log_line(scope, 404, 0.0125, "req-1").split(" ", 1)[1] == "- GET /a%20b/\\xff 404 0.013 s req-1"


@slow
def test_without_the_flag_nothing_is_written(server, capsys):
    assert server.exchange("/health")[0] == 200
    assert capsys.readouterr() == ("", "")


# The first minute


def test_a_server_that_is_ready_names_its_page_and_a_request_to_paste():
    said = greeting("http://127.0.0.1:8000", ServerSettings())
    assert "http://127.0.0.1:8000/\n" in said and "curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: " in said
    assert "127.0.0.1" in greeting("http://0.0.0.0:8000", ServerSettings(host="0.0.0.0"))
    locked = greeting("http://[::]:8000", ServerSettings(api_key="rose-key"))
    assert "http://[::1]:8000/" in locked and "Bearer $ROSEINFER_API_KEY" in locked and "rose-key" not in locked
    assert "a terminal whose ROSEINFER_API_KEY is the key" in locked
