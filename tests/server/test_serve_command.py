"""`roseinfer serve` as one types it: a process that loads, answers, drains at SIGTERM, and says what is wrong."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import pytest
from running import DEADLINE
from served_process import serving

from roseinfer.cli.main import main

pytestmark = pytest.mark.slow


POST = """\
model_config: {model_name: llama_7b, max_generate_length: 300, seq_length: [512], decode_batch_size: [4],
               prefill_batch_size: [2], pad_token_id: 0, model_dtype: DataType.FLOAT32}
pa_config: {num_blocks: 64, block_size: 16, decode_seq_length: 512}
"""
KEY = {"Authorization": "Bearer rose-key"}
LONG = {"prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A process that has the post's file, and a key from its environment. The last test of it ends it."""
    path = tmp_path_factory.mktemp("post") / "server.yaml"
    path.write_text(POST)
    with serving("tiny", "--config", str(path), ROSEINFER_API_KEY="rose-key") as served:
        yield served


def check_command(served, path):
    """Check that the page is where the process says, and type the command that it says."""
    page, command = served.process.stderr.readline(), served.process.stderr.readline()
    assert page.endswith(f": {served.url}/\n")
    status, _, headers = served.exchange("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    curl = command.split(": ", 1)[1].strip()
    assert f"curl {served.url}{path} " in curl and "rose-key" not in curl
    environ = os.environ | {"ROSEINFER_API_KEY": "rose-key"}
    run = subprocess.run(["sh", "-c", f"{curl} -s"], env=environ, capture_output=True, text=True)
    assert json.loads(run.stdout)["usage"]["completion_tokens"] > 0, run.stderr


def check_end(served, number, headers=""):
    """Check that a signal lets a stream end, and then the process with status 0."""
    with served.post("/v1/completions", LONG, f"{headers}Connection: close\r\n") as connection:
        answer = connection.recv(65536)
        served.process.send_signal(number)
        while part := connection.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200 OK") and b"data: [DONE]\n\n" in answer
    assert b'"finish_reason":"length"' in answer
    assert "every request has ended" in served.ended()
    with pytest.raises(ConnectionError):
        served.connect()


def test_the_command_that_it_says_when_it_is_ready_works(named):
    check_command(named, "/v1/completions")


@pytest.mark.nightly  # `named` says nearly the same
@pytest.mark.parametrize(
    ("model", "flags", "path"),
    [
        ("random:tiny-llama", [], "/v1/completions"),
        ("tiny", ["--chat-template", "{{ messages[0].content }}"], "/v1/chat/completions"),
    ],
)
def test_the_command_of_another_model_works(model, flags, path):
    with serving(model, *flags) as served:
        check_command(served, path)
        check_end(served, signal.SIGINT)


def test_the_posts_file_serves_with_a_key_from_the_environment(named):
    path, body = "/v1/completions", {"prompt": "If", "model": "llama_7b"}
    assert named.ask(path, body)[0] == 401
    assert named.ask(path, body, **KEY)[1]["usage"]["completion_tokens"] == 16
    status, answer = named.ask(path, body | {"max_tokens": 301}, **KEY)
    assert status == 400 and "max_generate_length, got 301" in answer["error"]["message"]


def test_a_signal_lets_a_stream_end_and_the_process_with_status_0(named):
    check_end(named, signal.SIGTERM, "Authorization: Bearer rose-key\r\n")


def test_a_learners_engine_answers_and_a_terminal_that_has_gone_holds_up_no_end(tmp_path, offline):
    (tmp_path / "__init__.py").write_text("from stages import TokenBudget as MyEngine\n")
    with serving("tiny", "--engine", str(tmp_path), "--max-num-seqs", "2") as served:
        _, answer = served.ask("/v1/completions", {"prompt": "If", "max_tokens": 9})
        assert answer["choices"][0]["text"] == offline.text("If", max_tokens=9)
        served.process.stderr.close()
        assert served.ask("/health")[0] == 200
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(DEADLINE) == 0


WRONG = [
    ("", "missing: MODEL"),
    ("tiny --port 70000", "--port must be an integer from 0 to 65,535, got 70000"),
    ("tiny --port x", "--port: must be an integer, got 'x'"),
    ("tiny --max-queue -1", "--max-queue must be an integer of at least 0, got -1"),
    ("tiny --header-seconds 0", "--header-seconds must be a number above 0, got 0.0"),
    ("tiny --drain-seconds -1", "--drain-seconds must be a number of at least 0, got -1.0"),
    ("tiny --api-key=", "--api-key must be of visible ASCII characters"),
    ("tiny --allowed-hosts https://rose.example", "--allowed-hosts must be names without a port, such as rose.example"),
    ("tiny --allowed-hosts a,rose.example:80", "such as rose.example, got 'rose.example:80'"),
    ("tiny --chat-template no.jinja", "--chat-template no.jinja: there is no such file, and Jinja would have"),
    ("tiny --config no/such.yaml", "--config no/such.yaml: there is no such file"),
    ("no/such/model --port 0", "no/such/model"),
    ("tiny --dtype int8 --port 0", "--dtype must be one of float32"),
    ("tiny --max-model-len 4096 --port 0", "--max-model-len 4096 is more positions than the model has"),
    (
        "tiny --scheduling-policy lottery --port 0",
        "--scheduling-policy: unknown value 'lottery' (nearest: shortest), allowed: fcfs, ",
    ),
    ("no/such/model --replicas 2", "no/such/model"),
    ("tiny --replicas 0", "--replicas must be an integer from 1 to 64, got 0"),
    ("tiny --replicas two", "--replicas: must be an integer, got 'two'"),
    ("tiny --affinity-header x-group", "--affinity-header x-group: needs --replicas"),
    ("tiny --replicas 2 --affinity-header a:b", "--affinity-header must be of letters, digits and -, got 'a:b'"),
    ("tiny --replicas 2 --max-connections 9", "--max-connections 9: changes nothing with --replicas"),
    ("tiny --replicas 2 --quantization int2", "--quantization must be one of int8, int4, got 'int2'"),
    ("tiny --device= --port 0", "--device '' is not a device"),
    ("tiny --replicas 2 --device abacus", "--device 'abacus' is not a device"),
    ("tiny --replicas 2 --dtype int8", "--dtype must be one of float32, float16, bfloat16, auto, got 'int8'"),
    ("tiny --replicas 2 --max-model-len 4096", "--max-model-len 4096 is more positions than the model has"),
    ("tiny --replicas 2 --block-size 0", "--block-size must be an integer of at least 1, got 0"),
    ("tiny --replicas 2 --scheduling-policy lottery", "lottery"),
    ("tiny --replicas 2 --access-log", "--access-log True: changes nothing with --replicas"),
    ("tiny --replicas 2 --send-seconds 9", "--send-seconds 9.0: changes nothing with --replicas"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_a_wrong_argument_is_one_line(capsys, arguments, message):
    assert main(["serve", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    [error] = err.splitlines()  # and no address, at which nothing would answer
    assert out == "" and error.startswith("error: ") and message in error


@pytest.mark.parametrize("more", [[], ["--replicas", "2"]])
def test_a_port_that_is_taken_is_one_line(capsys, more):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "tiny", "--port", str(port), *more]) == 1
    assert f"port={port} cannot be listened at: Address already in use" in capsys.readouterr().err


def test_a_host_that_is_none_of_ours_is_one_line(capsys):
    assert main(["serve", "tiny", "--host", "203.0.113.1", "--port", "0"]) == 1
    assert "host=203.0.113.1" in capsys.readouterr().err
