"""roseinfer ladder: which stages it runs, what it prints, and what goes wrong in a line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import torch

from roseinfer.cli.main import main as roseinfer
from roseinfer.cli.repository import chosen_stages, untimed
from roseinfer.engine.as_stage import EngineStage
from stages import LADDER, NaiveCat, PreallocGather, SelectAppend

pytestmark = pytest.mark.slow


def main(arguments: list[str]) -> int:
    return roseinfer(["ladder", *arguments])


def test_stages_are_chosen_by_first_part_or_whole_name():
    assert chosen_stages(None) == [*LADDER, EngineStage]
    assert chosen_stages("s03, s01_naive_cat, engine") == [SelectAppend, NaiveCat, EngineStage]


class ForgetsTheLastToken(PreallocGather):
    """Positions one too low: right shapes, wrong tokens."""

    def positions(self, seqs):
        return [seq.num_cached_tokens - 1 for seq in seqs]


class Untimed(PreallocGather):
    @classmethod
    def why_untimed(cls, device):
        return f"its times on {device} say nothing"


def test_a_stage_without_times_is_left_out_unless_it_is_named(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stages.LADDER", (NaiveCat, Untimed))
    sizes = "--no-hf --batch-size 2 --max-new-tokens 3 --repeats 1 --device cpu".split()
    assert untimed([NaiveCat, Untimed], torch.device("cpu")) == {"Untimed": "its times on cpu say nothing"}

    assert main(sizes) == 0
    out, err = capsys.readouterr()
    data = json.loads(out.splitlines()[-1])
    assert err == "Untimed left out: its times on cpu say nothing\n"
    assert data["arguments"]["stages"] == ["s01_naive_cat", "engine"]
    assert data["not_run"] == {"Untimed": "its times on cpu say nothing"}
    assert "left out: its times" in " ".join(out.split())  # the table's note, wrapped

    assert main(["--stages", "Untimed", *sizes]) == 0
    out, err = capsys.readouterr()
    assert err == "" and json.loads(out.splitlines()[-1])["arguments"]["stages"] == ["Untimed"]


def test_a_kernel_without_triton_is_one_line(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("roseinfer.kernels.triton_mode.unavailable", lambda *device: "Triton is not installed")
    assert main("--stages s07 --no-hf --device cpu".split()) == 1
    assert capsys.readouterr().err == (
        "error: s07_triton_paged failed in its constructor: TritonUnavailable: Triton is not installed\n"
    )


def test_wrong_tokens_are_one_line_and_exit_1(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stages.LADDER", (NaiveCat, ForgetsTheLastToken))
    assert main("--no-hf --batch-size 3 --max-new-tokens 12 --repeats 1".split()) == 1
    assert re.fullmatch(r"error: ForgetsTheLastToken: tokens differ .*\n", capsys.readouterr().err)


def test_ctrl_c_leaves_cleanly(capsys, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("roseinfer.bench.ladder.ladder", interrupted)
    assert main(["--stages", "s01"]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_the_command_prints_a_table_and_json_as_its_last_line(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "roseinfer",
            "ladder",
            "--stages",
            "s01,s02",
            "--max-new-tokens",
            "4",
            "--repeats",
            "1",
            "--batch-size",
            "2",
            "--device",
            "cpu",
            "--output",
            str(tmp_path / "ladder.json"),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0 and all(re.match(r" *\d+ s  ", line) for line in done.stderr.splitlines())
    *table, last = done.stdout.splitlines()
    data = json.loads(last)
    names = ["s01_naive_cat", "s02_prealloc_gather", "HF generate"]
    assert data["arguments"]["model"] == "tiny" and [row["stage"] for row in data["rows"]] == names
    whole = json.loads((tmp_path / "ladder.json").read_text())
    assert sorted(sample["name"] for sample in whole["samples"]) == sorted(names)
    assert "samples" not in data and whole["arguments"] == data["arguments"]
    assert any("s02_prealloc_gather" in line for line in table)
