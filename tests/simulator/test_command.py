"""`roseinfer simulate`: tables, a last line of JSON, one line for each error, and what Ctrl-C leaves."""

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
    assert "a FLOOR, not a measurement" in out and not line["is_partial"]


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


@pytest.mark.slow
def test_a_fit_is_kept_and_used_again(tmp_path, capsys, few_shapes):
    path = tmp_path / "fit.json"
    arguments = ["--requests", "10", "--max-num-seqs", "2", "--output-lens", "4"]
    assert main(["simulate", "--fit", "tiny", "--repeats", "1", "--output", str(path), *arguments]) == 0
    shown = last_line(capsys)
    kept = json.loads(path.read_text())
    assert "samples" not in shown["cost"] and len(kept["cost"]["samples"]) > 20
    assert main(["simulate", "--cost", str(path), *arguments]) == 0
    assert last_line(capsys)["rows"] == shown["rows"]


def test_a_trace(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"seconds": 1, "prompt_len": 8, "output_len": 2}\n' * 3)
    assert main(["simulate", "--floor", "H200 SXM", "--trace", str(trace)]) == 0
    assert last_line(capsys)["rows"][0]["output_tokens"] == 6


def test_ctrl_c_leaves_what_there_is(monkeypatch, capsys):
    from roseinfer.simulator.replica import Replica

    turn, turns = Replica.turn, []

    def interrupted(replica, now):
        turns.append(now)
        if len(turns) == 30:
            raise KeyboardInterrupt
        return turn(replica, now)

    monkeypatch.setattr(Replica, "turn", interrupted)
    assert main([*FLOOR, "--max-num-seqs", "4"]) == 130
    out, err = capsys.readouterr()
    line = json.loads(out.splitlines()[-1])
    ended = line["rows"][0]["ended"]
    assert "PARTIAL" in out and line["is_partial"] and 0 < ended < 40
    assert err == f"interrupted: partial, {ended} of 40 requests had ended\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--floor", "A100"], "--floor 'A100' is not in roseinfer/data/gpus.json"),
        (["--policies", "fcfs,fair"], "--policies: unknown value 'fair'"),
        (["--replicas", "0"], "--replicas must be an integer from 1 to 4,096, got 0"),
        (["--replicas", "many"], "--replicas 'many': must be integers with commas between them, such as 1,8,64"),
        (["--rate", "0"], "rate must be a number above 0, got 0.0"),
        (["--rate", "1", "--trace", "x"], "--trace has all of its requests: leave out --rate"),
        (["--trace", "x", "--seed", "0"], "--trace has all of its requests: leave out --seed"),
        (["--trace", "x", "--burst", "2"], "--trace has all of its requests: leave out --burst"),
        (["--trace", "x", "--prompt-lens", "8"], "--trace has all of its requests: leave out --prompt-lens"),
        (["--trace", "x", "--output-lens", "8"], "--trace has all of its requests: leave out --output-lens"),
        (["--validate", "tiny", "--burst", "1"], "--burst 1: changes nothing with --validate"),
        (["--validate", "tiny", "--rate", "0"], "--rate 0.0: changes nothing with --validate"),
        (["--burst", "2"], "--burst 2: needs --rate"),
        (["--prompt-lens", "9-3"], "--prompt-lens '9-3': must be a number of tokens, or the least and the most"),
        (
            ["--prompt-lens", "long"],
            "--prompt-lens 'long': must be a number of tokens, or the least and the most, such as 16-256",
        ),
        (["--max-num-batched-tokens", "8"], "--max-num-batched-tokens 8 is less than a step of --max-num-seqs 64"),
        (["--max-model-len", "100"], "can never fit"),
        (["--max-model-len", "0"], "--max-model-len must be an integer of at least 1, got 0"),
        (["--routers", "round_robin,x"], "--routers: unknown value 'x'"),
        (["--host-ms", "3"], "--host-ms 3.0: changes nothing with --fit"),
        (["--floor", "H200 SXM", "--repeats", "2"], "--repeats 2: changes nothing with --floor"),
        (["--cost", "x.json", "--dtype", "float16"], "--dtype float16: changes nothing with --cost"),
        (["--validate", "tiny", "--replicas", "2"], "--validate runs one replica"),
        (["--validate", "tiny", "--policies", "fcfs,packed"], "--validate runs one policy"),
        (["--fit", "tiny", "--floor", "H200 SXM"], "not allowed with"),
        (["--prefix-groups", "4"], "--prefix-groups 4: needs --prefix-len"),
        (["--prefix-groups", "0", "--prefix-len", "8"], "--prefix-groups must be an integer of at least 1, got 0"),
        (["--trace", "x", "--prefix-groups", "4"], "--trace has all of its requests: leave out --prefix-groups"),
    ],
)
def test_one_line_for_each_error(arguments, error, capsys):
    assert main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and error in err and err.count("\n") == 1


def test_a_cost_that_is_none(tmp_path, capsys):
    for text in ("{}", "no", '{"cost": 3}'):
        (tmp_path / "x.json").write_text(text)
        assert main(["simulate", "--cost", str(tmp_path / "x.json")]) == 2
        assert "must be what --output of a run with --fit wrote" in capsys.readouterr().err
