"""`roseinfer simulate`: tables, a last line of JSON, and one line for each error."""

from __future__ import annotations

import json

import pytest

from roseinfer.cli.main import main

FLOOR = ["simulate", "--floor", "H200 SXM", "--requests", "40", "--output-lens", "1-20"]


def last_line(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_tables_and_a_line(capsys):
    assert main([*FLOOR, "--replicas", "1,2", "--policies", "fcfs,packed", "--rate", "100", "--burst", "4"]) == 0
    out = capsys.readouterr().out
    line = json.loads(out.splitlines()[-1])
    assert [(row["policy"], row["replicas"]) for row in line["rows"]] == [
        ("fcfs", 1),
        ("fcfs", 2),
        ("packed", 1),
        ("packed", 2),
    ]
    assert line["arguments"]["burst"] == 4 and line["cost"]["kind"] == "floor"
    assert "a FLOOR, not a measurement" in out


def test_the_same_arguments_give_the_same_rows(capsys):
    lines = []
    for _ in range(2):
        assert main([*FLOOR, "--rate", "50", "--seed", "3"]) == 0
        lines.append(last_line(capsys)["rows"])
    assert lines[0] == lines[1]


def test_routers_and_replicas_of_a_cluster(capsys):
    replicas = ["--replicas", "2,4", "--rate", "500"]
    prefixes = ["--prefix-len", "64", "--prefix-groups", "3"]
    assert main([*FLOOR, *replicas, *prefixes, "--routers", "prefix_aware,round_robin"]) == 0
    line = last_line(capsys)
    told = [(row["router"], row["replicas"], row["ended"]) for row in line["rows"]]
    assert told == [(router, number, 40) for router in ("prefix_aware", "round_robin") for number in (2, 4)]
    assert line["arguments"]["prefix_groups"] == 3


def test_a_trace(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"seconds": 1, "prompt_len": 8, "output_len": 2}\n' * 3)
    assert main(["simulate", "--floor", "H200 SXM", "--trace", str(trace)]) == 0
    assert last_line(capsys)["rows"][0]["output_tokens"] == 6


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--floor", "A100"], "--floor 'A100' is not in roseinfer/data/gpus.json"),
        (["--policies", "fcfs,fair"], "--policies: unknown value 'fair'"),
        (["--rate", "0"], "rate must be a number above 0, got 0.0"),
        (["--rate", "1", "--trace", "x"], "--rate 1.0: leave it out, --trace has all of its requests"),
        (["--trace", "x", "--prompt-lens", "8"], "--prompt-lens 8: leave it out, --trace has all of its requests"),
        (["--trace", "x", "--requests", "8"], "--requests 8: leave it out, --trace has all of its requests"),
        (["--burst", "2"], "--burst 2: needs --rate"),
        (["--max-num-batched-tokens", "8"], "--max-num-batched-tokens 8 is less than a step of --max-num-seqs 64"),
        (["--max-model-len", "100"], "can never fit"),
        (["--routers", "round_robin,x"], "--routers: unknown value 'x'"),
        (["--host-ms", "3"], "--host-ms 3.0: changes nothing with --fit"),
        (["--floor", "H200 SXM", "--repeats", "2"], "--repeats 2: changes nothing with --floor"),
        (["--fit", "tiny", "--floor", "H200 SXM"], "not allowed with"),
        (["--prefix-groups", "4"], "--prefix-groups 4: needs --prefix-len"),
        (["--prefix-groups", "0", "--prefix-len", "8"], "--prefix-groups must be an integer of at least 1, got 0"),
    ],
)
def test_one_line_for_each_error(arguments, error, capsys):
    assert main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and error in err and err.count("\n") == 1
