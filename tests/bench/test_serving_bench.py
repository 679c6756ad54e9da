"""roseinfer bench serve: a load by the clock on a server of this process, its counts exact; what it refuses."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from roseinfer.bench.serving import Limits, Outcome, ServingResult, Target, load, plan_of, server_memory
from roseinfer.bench.serving.client import CANCELLED, COMPLETE, REFUSED
from roseinfer.bench.serving.result import row_of
from roseinfer.cli.main import main
from roseinfer.paths import ROOT

sys.path.append(str(ROOT / "tests" / "server"))
from running import running_server  # noqa: E402

pytestmark = pytest.mark.slow

LENGTHS = {"vocab_size": 100, "prompt_lens": (2, 9), "output_lens": (3, 5)}


@pytest.fixture(scope="module")
def server():
    with running_server(max_queue=64) as running:
        yield running


def port_of(server) -> str:
    return str(server.address[1])


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_a_load_ends_complete_and_identical(server, tmp_path, capsys, stream):
    flags = f"-X 80 -T 0.5 -P {port_of(server)} -O {tmp_path} --malformed 0.1 --cancelled 0.1 --verify tiny {stream}"
    assert main(["bench", "serve", *flags.split()]) == 0
    out = capsys.readouterr().out
    assert "complete answers have the text of tiny offline" in out and "good req/s" in out
    assert "Memory of the server: " in out
    found = json.loads((tmp_path / "serve.json").read_text())
    [row] = found["rows"]
    assert row["requests"] == 40 == sum(row[how] for how in ("complete", "cancelled", "refused"))
    assert row["refused"] == row["malformed"] > 0 and row["failed"] == row["wrongly_refused"] == 0
    assert len(found["samples"]) == 40 and found["definitions"]["goodput"]
    assert len(found["memory"]) >= 2 and all(nbytes > 2**20 for _, nbytes in found["memory"])
    complete = [one for one in found["samples"] if one["how"] == COMPLETE]
    assert all(16 <= one["num_tokens"] <= 64 for one in complete)
    assert all(bool(one["chunks"]) == (stream == "--stream") for one in complete)
    assert "<html" in (tmp_path / "serve.html").read_text()[:500].lower()
    server.wait_until_idle()


def test_a_closed_loop_has_no_more_requests_than_clients(server):
    plan = plan_of(1000, 0.007, **LENGTHS)
    outcomes = asyncio.run(load(Target(server.url, "tiny"), plan, clients=2))
    assert [one.how for one in outcomes] == [COMPLETE] * 7 and [one.num_tokens for one in outcomes] == [
        sent.max_tokens for sent in plan
    ]
    for one in outcomes:
        assert sum(other.sent <= one.sent < other.ended for other in outcomes) <= 2


def test_memory_is_sampled_meanwhile_and_not_where_it_is_not_told(server, monkeypatch):
    monkeypatch.setattr(server_memory, "EVERY_SECONDS", 0.01)
    done, samples = asyncio.run(server_memory.watched(server.url, asyncio.sleep(0.3, "done")))
    assert done == "done" and len(samples) > 3 and sorted(samples) == samples
    assert asyncio.run(server_memory.watched("http://127.0.0.1:1", asyncio.sleep(0.05, 1))) == (1, [])


def test_a_plan_is_its_seeds():
    plan = plan_of(5, 8, **LENGTHS, cancelled=0.3, malformed=0.2, seed=4)
    assert plan == plan_of(5, 8, **LENGTHS, cancelled=0.3, malformed=0.2, seed=4)
    assert plan != plan_of(5, 8, **LENGTHS, cancelled=0.3, malformed=0.2, seed=5)
    assert len(plan) == 40 and all(2 <= len(one.prompt) <= 9 and 3 <= one.max_tokens <= 5 for one in plan)
    assert all(one.gone_after is None or one.malformed is None for one in plan)
    assert sorted(one.seconds for one in plan) == [one.seconds for one in plan]


def outcome(arrival, chunks, how=COMPLETE, num_tokens=3):
    return Outcome(arrival, arrival, chunks, ended=(chunks or [arrival])[-1], num_tokens=num_tokens, how=how)


def test_rates_and_goodput_by_hand():
    plan = plan_of(4, 1, **LENGTHS)
    outcomes = [
        outcome(0.0, [0.1, 0.2, 0.3]),
        outcome(0.5, [1.5, 1.6, 1.7]),  # TTFT of 1 s
        outcome(1.0, [1.1, 1.4, 2.0]),  # TPOT of 0.45 s
        outcome(1.5, [], how=CANCELLED, num_tokens=0),
    ]
    row = row_of(plan, outcomes, Limits(ttft_ms=500, itl_ms=200))
    assert (row["complete"], row["cancelled"], row["failed"]) == (3, 1, 0)
    assert row["requests_per_second"] == pytest.approx(3 / 2) and row["tokens_per_second"] == pytest.approx(9 / 2)
    assert row["goodput"] == pytest.approx(1 / 2)
    assert row["ttft"]["p50"] == pytest.approx(0.1) and row["ttft"]["max"] == pytest.approx(1.0)
    assert row["tpot"]["max"] == pytest.approx(0.45) and row["itl"]["p50"] == pytest.approx(0.1)


def test_nothing_complete_is_a_table_too():
    plan = plan_of(1, 1, **LENGTHS)
    refused = [outcome(0.0, [], how=REFUSED, num_tokens=0)]
    refused[0].ended = 0.1
    arguments = {"model": "m", "url": "u", "rate": 1, "seconds": 1, "stream": True, "ttft_ms": 1, "itl_ms": 1}
    arguments |= {"prompt_len": [1, 1], "output_len": [1, 2], "clients": None}
    host = {"host": {}, "device": "d", "versions": {"torch": "2"}, "commit": None}
    rows = [row_of(plan, refused, Limits(1, 1))]
    result = ServingResult(arguments=arguments, rows=rows, tokens=None, memory=[], **host)
    assert "1 well-formed request was refused" in result.text() and json.loads(result.to_line())


def test_a_share_above_1_is_one_line(server, capsys):
    assert main(["bench", "serve", "--cancelled", "2", "-P", port_of(server)]) == 2
    out, err = capsys.readouterr()
    assert "cancelled must be a share from 0 to 1, got 2.0" in err and err.count("\n") == 1
