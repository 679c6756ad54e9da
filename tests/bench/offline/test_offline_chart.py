"""A recorded race, shown and drawn again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from roseinfer.bench.offline import OfflineResult
from roseinfer.bench.offline.chart import OfflineChart
from roseinfer.cli.main import main
from roseinfer.paths import ROOT

RECORDED = sorted((ROOT / "data" / "offline").glob("*.json"))


def read(path: Path) -> OfflineResult:
    return OfflineResult(**json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_bar_for_each_contender_and_cell(path, tmp_path, capsys):
    recorded = read(path)
    assert json.loads(recorded.to_json()) == json.loads(path.read_text(encoding="utf-8"))
    chart = OfflineChart(recorded)
    [rows] = chart.spec["datasets"].values()
    assert len(rows) == len(recorded.rows)
    hf = [row["times HF"] for row in rows if row["contender"] == "HF generate" and "float32" in row["panel"]]
    assert set(hf) == ({1} if "HF generate" in repr(recorded.rows) else set())
    assert ("× HF generate" in repr(chart.spec)) == bool(hf)
    assert all(row["name"] in repr(chart) for row in recorded.rows)
    assert main(["bench", "offline", "--recorded", str(path), "--chart", str(tmp_path / "race.svg")]) == 0
    assert f"{recorded.rows[0]['precision']}: " in capsys.readouterr().out
    assert (tmp_path / "race.svg").read_text().startswith("<svg")


def test_without_hf_the_bars_are_tokens_a_second():
    recorded = read(RECORDED[0])
    without = replace(recorded, rows=[row | {"vs_hf_float32": None} for row in recorded.rows])
    assert "tokens a second" in repr(OfflineChart(without).spec)


ONLINE = (ROOT / "data" / "online" / "budgets-fp32.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", "{}", '{"rows": []}', ONLINE], ids=["empty", "no race", "no arguments", "online"])
def test_another_file_is_refused(text, tmp_path, capsys):
    path = tmp_path / "some.json"
    path.write_text(text)
    for given, why in (
        (path, "must be what `bench offline --output` wrote"),
        (tmp_path, "cannot be read"),
        (tmp_path / "no", "there is no such file"),
    ):
        assert main(["bench", "offline", "--recorded", str(given)]) == 2
        assert capsys.readouterr().err.startswith(f"error: --recorded {given}: {why}")
