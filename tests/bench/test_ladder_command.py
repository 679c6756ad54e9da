"""roseinfer ladder: which stages it runs, and what it prints."""

from __future__ import annotations

import json

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


def test_the_command_prints_a_table_and_json_as_its_last_line(tmp_path, capsys):
    sizes = "--stages s01,s02 --max-new-tokens 4 --repeats 1 --batch-size 2 --device cpu".split()
    assert main([*sizes, "--output", str(tmp_path / "ladder.json")]) == 0
    out, err = capsys.readouterr()
    *table, last = out.splitlines()
    data = json.loads(last)
    names = ["s01_naive_cat", "s02_prealloc_gather", "HF generate"]
    assert err == "" and data["arguments"]["model"] == "tiny" and [row["stage"] for row in data["rows"]] == names
    whole = json.loads((tmp_path / "ladder.json").read_text())
    assert sorted(sample["name"] for sample in whole["samples"]) == sorted(names)
    assert "samples" not in data and whole["arguments"] == data["arguments"]
    assert any("s02_prealloc_gather" in line for line in table)
