"""How a program ends that has a second process: by itself, by signals, and as a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from processes import wait_until_gone

from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow
# No `if __name__` guard, and read from stdin: nothing of it may run in the other process.
PROGRAM = """
from roseinfer import LLM, SamplingParams
llm = LLM("random:tiny-llama", tensor_parallel_size=2, max_num_seqs=2)
[other] = llm._ranks._others.others
print(other.process.pid, flush=True)
for output in llm.stream([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=NUM, ignore_eos=True)):
    pass
print("done", flush=True)
"""


def started(num_tokens: int) -> tuple[subprocess.Popen, int]:
    """A program that generates, and its other process."""
    program = subprocess.Popen(
        [sys.executable, "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    program.stdin.write(PROGRAM.replace("NUM", str(num_tokens)))
    program.stdin.close()
    return program, int(program.stdout.readline())


@pytest.mark.nightly
def test_a_program_without_a_guard_ends_and_its_process_with_it() -> None:
    program, other = started(3)
    assert program.stdout.read() == "done\n"
    assert program.wait(30) == 0, program.stderr.read()
    wait_until_gone(other)


AT_NIGHT = [pytest.param(number, marks=pytest.mark.nightly) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGKILL, *AT_NIGHT])
def test_a_program_that_ends_by_a_signal_leaves_no_process(number: int) -> None:
    program, other = started(250)
    program.send_signal(number)
    assert program.wait(30) in (-number, 128 + number, 1)
    wait_until_gone(other)


@pytest.fixture
def server() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-m", "roseinfer", "serve", "tiny", "--port", "0", "--tensor-parallel", "2"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def status_of(url: str, body: dict) -> int:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=30) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_a_server_whose_rank_dies_ends_and_names_it(server: subprocess.Popen) -> None:
    url = server.stderr.readline().split()[0]
    while "ready" not in (line := server.stderr.readline()):
        assert line, "the server has ended"
    body = {"model": "tiny", "prompt": "Return", "max_tokens": 4, "temperature": 0}
    assert status_of(f"{url}/v1/completions", body) == 200
    [other] = children(server.pid)
    os.kill(other, signal.SIGKILL)
    assert status_of(f"{url}/v1/completions", body) == 503
    assert server.wait(30) != 0
    assert f"rank 1 (process {other}) was ended by SIGKILL" in server.stderr.read()


def children(pid: int) -> list[int]:
    """Its ranks: not the process that renders chat templates."""
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(child) for child in file.read().split()]
    return [child for child in found if b"roseinfer.parallel" in Path(f"/proc/{child}/cmdline").read_bytes()]
