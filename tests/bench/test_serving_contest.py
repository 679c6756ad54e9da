"""roseinfer bench serve --contenders: the engine's server and llama.cpp's, a fake one here, under one load."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from roseinfer.bench.child_process import without_settings_of_ours
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.serving import servers
from roseinfer.bench.serving.client import COMPLETE, FAILED, Outcome
from roseinfer.bench.serving.dialect import LLAMA, OPENAI, Said
from roseinfer.bench.serving.plan import Planned
from roseinfer.bench.serving.result import ContestResult, contest_rows
from roseinfer.bench.serving.run import check_answer, contest
from roseinfer.bench.serving.server_process import ServerProcess
from roseinfer.bench.settings import Serve
from roseinfer.cli.main import main, parser

pytestmark = pytest.mark.slow

HOST = {"host": {}, "device": "d", "versions": {"torch": "2"}, "commit": None}
FAKE = Path(__file__).parent / "fake_llama"
SMALL = {"rate": 40, "seconds": 0.2, "prompt_len": (3, 5), "output_len": (2, 4), "repeats": 1, "slots": 2}


@pytest.fixture
def fake_llama(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In the place of what `make peers` compiles."""
    script = tmp_path / "llama-server"
    script.write_text(
        f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(FAKE))}/fake_llama_server.py $@\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(servers, "LLAMA_SERVER", script)
    monkeypatch.setattr(servers, "PYTHON", sys.executable)
    monkeypatch.setattr(servers, "HERE", FAKE)
    return script


@pytest.mark.nightly  # beside a load on one server, and the flags of the other below
def test_both_started_answer_every_request(fake_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = "--contenders engine,llama-server --model tiny -X 40 -T 0.2 --prompt-len 3-5 --output-len 2-4 --repeats 2"
    assert main(["bench", "serve", *flags.split(), "--slots", "2", "--clients", "2", "-O", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "engine over llama-server, tokens per second: " in out and "closed loop of 2 clients" in out
    found = json.loads((tmp_path / "servers.json").read_text())
    assert [row["name"] for row in found["rows"]] == ["engine", "llama-server"]
    assert {one["complete"] for one in found["samples"]} == {8} and len(found["samples"]) == 4
    tokens = {one["repeat"]: set() for one in found["samples"]}
    for one in found["samples"]:
        tokens[one["repeat"]].add(round(one["tokens_per_second"] * one["seconds"]))
    assert all(len(both) == 1 for both in tokens.values())  # the same load for both


def test_an_open_loop_of_one_server(fake_llama: Path):
    result = contest(Serve(model="tiny", contenders=["llama-server"], **SMALL))
    [row] = result.rows
    assert row["requests"] == 8 and row["itl_p50"] is not None
    assert "40 requests/s for 0.2 s, open loop" in result.text() and "over" not in result.notes()[-1]


def test_the_engines_server_is_started_with_flags_that_it_knows(monkeypatch: pytest.MonkeyPatch):
    typed = []

    @contextmanager
    def started(name, command):
        typed.append(command(8123)[3:])  # behind python -m roseinfer
        yield SimpleNamespace(url="http://here")

    monkeypatch.setattr(servers, "ServerProcess", started)
    for precision, weights in (("float32", ("float32", None)), ("int8", (None, "int8"))):
        setting = Serve(contenders=["engine"], **SMALL | {"precision": precision})
        with ExitStack() as stack:
            assert servers.start_engine(setting, "tiny", 5, stack).url == "http://here"
        given = parser().parse_args(typed.pop())
        assert (given.dtype, given.quantization) == weights and (given.port, given.max_queue) == (8123, 5)
        assert (given.max_num_seqs, given.num_kvcache_blocks, given.block_size) == (2, 2, 16)


def test_a_server_that_ends_says_why(fake_llama: Path):
    with pytest.raises(ContenderFailed, match="^llama-server ended with status 1: three slots are too many$"):
        contest(Serve(model="tiny", contenders=["llama-server"], **SMALL | {"slots": 3}))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("", "llama-server is not there: `make peers` compiles it"),
        ("--contenders engine,vllm", "--contenders: unknown value 'vllm'"),
        ("--url http://a", "--url http://a: not with --contenders"),
        ("--cancelled 0.1", "--cancelled 0.1: not with --contenders"),
        ("--no-stream", "--no-stream: not with --contenders"),
    ],
)
def test_a_wrong_argument_is_one_line(monkeypatch, tmp_path, capsys, flags, message):
    monkeypatch.setattr(servers, "LLAMA_SERVER", tmp_path / "none")
    assert main(["bench", "serve", "--contenders", "engine,llama-server", "--model", "tiny", *flags.split()]) == 2
    _, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1


def test_an_answer_with_other_tokens_ends_the_contest():
    sent = Planned(0.0, [1], 4)
    check_answer("x", sent, Outcome(0, 0, num_tokens=4, how=COMPLETE))
    with pytest.raises(ContenderFailed, match="^x gave 3 tokens, asked were 4$"):
        check_answer("x", sent, Outcome(0, 0, num_tokens=3, how=COMPLETE))
    with pytest.raises(ContenderFailed, match=r"^x: a request failed \(gone\)$"):
        check_answer("x", sent, Outcome(0, 0, how=FAILED, error="gone"))


def test_what_each_dialect_says():
    assert OPENAI.read({"choices": [{"text": "a"}, {"text": None}]}) == Said("a", True)
    assert OPENAI.read({"choices": [], "usage": {"completion_tokens": 3}}) == Said("", False, 3)
    assert OPENAI.read({"error": {"message": "no"}}) == Said(error="no")
    assert LLAMA.read({"content": "a", "stop": False}) == Said("a", True)
    assert LLAMA.read({"content": "", "stop": True, "tokens_predicted": 3}) == Said("", False, 3, True)
    assert LLAMA.read({"content": "all", "stop": True, "tokens_predicted": 3}) == Said("all", True, 3, True)
    body = json.loads(LLAMA.encoded("m", Planned(0, [1, 2], 5), stream=False))
    assert body["prompt"] == [1, 2] and body["n_predict"] == 5 and body["stream"] is False
    assert OPENAI.encoded("m", Planned(0, [1], 5, malformed=b"{"), stream=True) == b"{"


def test_verdicts_and_a_ratio_without_a_divisor():
    def sample(name, tokens, goodput):
        row = {"name": name, "requests": 2, "tokens_per_second": tokens, "goodput": goodput}
        return row | {"ttft": {"p50": 0.1, "p99": 0.2}, "itl": None}

    samples = [sample("a", 30.0, 2.0), sample("a", 20.0, 2.0), sample("b", 10.0, 0.0), sample("b", 9.0, 0.0)]
    arguments = {"model": "m", "precision": "float32", "rate": 1, "seconds": 1, "clients": None, "slots": 1}
    arguments |= {"prompt_len": [1, 1], "output_len": [2, 2], "ttft_ms": 1, "itl_ms": 1, "repeats": 2}
    result = ContestResult(arguments=arguments, rows=contest_rows(samples), samples=samples, **HOST)
    assert result.ratio("tokens_per_second") == "a over b, tokens per second: ×2.63 (more in 2 of 2 runs)."
    assert result.ratio("goodput") == "a over b, good requests per second: no ratio, as b has none."
    assert result.rows[0]["ttft_p99"] == 0.2 and result.rows[0]["itl_p50"] is None and json.loads(result.to_line())


def test_a_server_process_is_ended_and_may_be_closed_twice(fake_llama: Path, tmp_path: Path):
    model = tmp_path / "model"
    model.write_text('{"vocab_size": 9}')
    given = [str(fake_llama), "--model", str(model), "--host", "127.0.0.1"]
    server = ServerProcess("x", lambda port: [*given, "--port", str(port)], without_settings_of_ours(("OMP_",)))
    assert server.is_running
    server.close()
    assert not server.is_running
    server.close()
