"""python -m roseinfer.benchmark_scheduler: the posts' command lines and output lines, to the letter."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys

import pytest
import torch

from course.posts.data import post_facts
from roseinfer.benchmark_scheduler import chosen_stage, main, parser
from roseinfer.profiling import Trace
from stages import BlockTable, NumbaPaged, VectorizedGather

pytestmark = pytest.mark.slow


POST_000_PRINTS = """\
=== online ===
Requests: 16
Elapsed (prefill/add): 0.183590 seconds
Elapsed (decode/run): 0.443207 seconds
Elapsed (total): 0.626796 seconds
Prompt tokens: 16
Completion tokens: 256
Total tokens: 272
Throughput (completion): 408.43 tokens/s
Throughput (total): 433.95 tokens/s

[profile] wrote: profiles/online_decode.json
"""
POST_004_PRINTS = """\
=== online summary ===
Warmup runs: 1
Measured runs: 3
Decode time p50/mean: 7.815151/7.817639 s
Total time p50/mean: 7.984901/7.988579 s
Throughput(completion,decode) p50/mean: 4192.88/4191.55 tokens/s
Throughput(completion,total) p50/mean: 4103.75/4101.86 tokens/s
TTFT p50/mean: 2.64/2.64 ms
TPOT p50/mean: 15.32/15.33 ms/token
Latency p50/mean: 7831.53/7834.13 ms
"""
# What Nsight runs in post 004.
POST_004_UNDER_NSIGHT = """python -m rosellm.roseinfer.benchmark_scheduler --hf-model-id gpt2 --device cuda
--prompt "Hello" --num-requests 64 --max-new-tokens 512 --mode online --max-batch-size 64
--no-stop-on-eos --no-prefix-cache --pretok --warmup-runs 0 --repeat-runs 1 --paged-attn"""


def here(command: str, **changed: object) -> list[str]:
    """The post's arguments with small counts, on this machine's CPU."""
    words = shlex.split(command.replace("rosellm.roseinfer", "roseinfer"))
    assert words[:3] == ["python", "-m", "roseinfer.benchmark_scheduler"]
    argv = words[3:]
    for flag, value in {"--device": "cpu", **changed}.items():
        argv[argv.index(flag) + 1] = str(value)
    return argv


def shape_of(printed: str) -> re.Pattern[str]:
    """The same lines with any times: as many decimals; counts as they are."""
    return re.compile(re.sub(r"\d+\\\.(\d+)", lambda m: rf"\d+\.\d{{{len(m[1])}}}", re.escape(printed)))


def test_the_command_of_post_000(capsys, tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("roseinfer.benchmark_scheduler.load_model", lambda *spec, **where: small)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # nor does a test download a tokenizer
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert main(here(post_facts("000")["command"])) == 0
    printed = capsys.readouterr()
    assert shape_of(POST_000_PRINTS).fullmatch(printed.out), printed.out
    assert "random:gpt2 stands for it, the same shape" in printed.err
    assert "each word of a prompt is one token" in printed.err
    trace = Trace.load("profiles/online_decode.json")
    assert trace.count("roseinfer.decode_step_sessions.total") == 3


@pytest.mark.parametrize("command", [post_facts("004")["command"], POST_004_UNDER_NSIGHT], ids=["bench", "nsight"])
def test_the_commands_of_post_004(capsys, command):
    argv = here(command, **{"--hf-model-id": "tiny", "--num-requests": 5, "--max-new-tokens": 4})
    assert main(argv) == 0
    expected = POST_004_PRINTS
    if "--repeat-runs 1" in command:
        expected = expected.replace("Warmup runs: 1", "Warmup runs: 0").replace("Measured runs: 3", "Measured runs: 1")
    printed = capsys.readouterr()
    assert shape_of(expected + "\n").fullmatch(printed.out), printed.out
    assert "left out" not in printed.err


def test_the_newest_stage_that_can_be_timed_runs_and_those_after_it_are_named(capsys, monkeypatch):
    class Untimed(NumbaPaged):
        @classmethod
        def why_untimed(cls, device):
            return f"its times on {device} say nothing"

    monkeypatch.setattr("roseinfer.cli.repository.rungs", lambda: [VectorizedGather, BlockTable, NumbaPaged, Untimed])
    for flags, stage, said in (
        (["--paged-attn"], NumbaPaged, "Untimed left out: its times on cpu say nothing (--stage Untimed runs it all"),
        ([], VectorizedGather, ""),
    ):
        args = parser().parse_args(["--hf-model-id", "tiny", "--prompt", "Hello", *flags])
        assert chosen_stage(args, torch.device("cpu")) is stage
        assert capsys.readouterr().err.startswith(said)


def test_it_runs_as_a_module(tmp_path, capsys, monkeypatch):
    argv = ["--hf-model-id", "tiny", "--prompt", "Hello", "--num-requests", "2", "--max-new-tokens", "3"]
    argv += ["--repeat-runs", "1", "--output", str(tmp_path / "run.json")]
    monkeypatch.setattr(sys, "argv", ["benchmark_scheduler", *argv])
    monkeypatch.delitem(sys.modules, "roseinfer.benchmark_scheduler")
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: None)  # of this process, which goes on
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as left:
        runpy.run_module("roseinfer.benchmark_scheduler", run_name="__main__")
    out, err = capsys.readouterr()
    assert left.value.code == 0 and out.startswith("=== online summary ===\nWarmup runs: 1\n") and err == ""
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["stage"] == "s04_vectorized_gather"
    (run,) = data["modes"]["online"]["runs"]
    assert [len(request["output_ids"]) for request in run["requests"]] == [3, 3]
    assert [step["prompt_tokens"] for step in run["steps"]] == [2, 2, 0, 0]
    assert set(data["modes"]["online"]["summary"][0]) == {"metric", "unit", "values", "p50", "mean"}
    assert data["device"] and data["versions"]["torch"] == str(torch.__version__)


def test_sampling_draws_the_same_tokens_in_every_run(tmp_path):
    argv = ["--hf-model-id", "tiny", "--prompt", "Hello", "--num-requests", "3", "--max-new-tokens", "6"]
    argv += ["--do-sample", "--top-k", "40", "--top-p", "0.9", "--output", str(tmp_path / "run.json")]
    assert main([*argv, "--no-stop-on-eos", "--stage", "s02"]) == 0
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["stage"].startswith("s02")
    runs = data["modes"]["online"]["runs"]
    tokens = [[request["output_ids"] for request in run["requests"]] for run in runs]
    assert tokens[0] == tokens[1] == tokens[2]
    assert len({tuple(ids) for ids in tokens[0]}) > 1  # drawn, and not all alike


@pytest.mark.parametrize(("flags", "computed"), [([], 6), (["--no-prefix-cache"], 70)], ids=["shared", "whole"])
def test_the_engine_shares_prefixes_unless_told_not_to(flags, computed, tmp_path):
    argv = ["--hf-model-id", "random:tiny-llama", "--prompt", "a " * 70, "--num-requests", "2", "--max-batch-size", "1"]
    argv += ["--max-new-tokens", "2", "--repeat-runs", "1", "--paged-attn", "--output", str(tmp_path / "run.json")]
    assert main([*argv, *flags]) == 0
    data = json.loads((tmp_path / "run.json").read_text())
    assert data["stage"] == "engine"
    (run,) = data["modes"]["online"]["runs"]
    assert [step["prompt_tokens"] for step in run["steps"]] == [70, 0, computed, 0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--stage", "s99"], "--stage: unknown stage 's99'.*allowed: s01_naive_cat"),
        (["--stage", "s03", "--paged-attn"], "--stage s03: has no paged attention"),
        (["--stage", "s01,s02"], "--stage s01,s02: must be one stage"),
        (["--max-batch-size", "0"], "--max-batch-size must be an integer of at least 1, got 0"),
        (["--repeat-runs", "0"], "--repeat-runs must be"),
        (["--num-requests", "0"], "--num-requests must be"),
        (["--max-new-tokens", "600"], "--max-new-tokens 600: allowed: 512 tokens with the prompt"),
        (["--do-sample", "--top-p", "0"], "--top-p must be"),
        (["--device", "nope"], "--device 'nope' is not a device"),
        (["--output", "nowhere/run.json"], "--output nowhere/run.json: must be a file in a folder that exists"),
        (["--profile", "--max-new-tokens", "3", "--num-requests", "1"], "a profile takes six decode steps"),
        (["--tokenizer-name", "./nowhere"], "no such folder: './nowhere'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_argument_is_one_line(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["--hf-model-id", "tiny", "--prompt", "Hello", *flags]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(f"error: {message}.*\n", printed.err) and printed.out == ""


@pytest.mark.parametrize("flags", [[], ["--prompt", "a", "--bf16", "--no-amp"]])
def test_flags_that_are_missing_or_exclude_each_other(flags, capsys):
    assert main(["--hf-model-id", "tiny", *flags]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_help_defines_every_metric_that_is_printed(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    lines = (POST_000_PRINTS + POST_004_PRINTS).splitlines()
    metrics = {re.split(r"[:=\[]| p50/mean", line)[0] for line in lines} - {"", "Warmup runs", "Measured runs"}
    renamed = {"Decode time", "Total time", "Requests"}  # defined under the post's other name, or plain
    assert {name for name in metrics if f"\n  {name}: " not in text} == renamed
    assert "also printed as `Decode time`" in " ".join(text.split())
