"""Figures that a GPU report recorded stand in a post's report and in the terminal, each under its machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_up import REPORT

from course.posts.report.content import RECORDED
from course.posts.report.recorded import recorded_grids
from course.posts.report.template import recorded_section
from course.posts.report.terminal import summary
from roseinfer.benchmark_scheduler import main as benchmark
from roseinfer.paths import DATA


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "gpu"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize(("post", "figures"), [("000", 3), ("004", 7)])
def test_a_posts_command_stands_beside_its_figures(post: str, figures: int, runs: Path, tmp_path: Path, capsys):
    path = runs / f"post-{post}-s03.json"
    arguments = (
        "--hf-model-id random:tiny-llama --device cpu --prompt a --num-requests 2 --max-new-tokens 3 --stage s03"
    )
    assert benchmark([*arguments.split(), "--repeat-runs", "1", "--output", str(path)]) == 0
    ((title, grid),) = recorded_grids(post, tmp_path).items()
    assert title.startswith("s03_select_append in float32 on ") and ", commit " in title
    assert len(grid.rows) == figures and all(None not in row for row in grid.rows)
    data = json.loads(path.read_text())
    p50 = {stat["metric"]: stat["p50"] for stat in data["modes"]["online"]["summary"]}
    assert all(row[3] == round(p50[str(row[0])], 4) for row in grid.rows)


def test_the_executors_of_a_gpu_stand_in_post_003s_report(runs: Path, tmp_path: Path):
    shutil.copy(DATA / "runs/nvidia-h200/executors-b28c777.json", runs)
    grids = recorded_grids("003", tmp_path)
    section = recorded_section(grids)
    (grid,) = section.grids
    assert grid.title == "random:gpt2 in bfloat16 on NVIDIA H200, commit b28c777"
    assert [row[0] for row in grid.rows] == ["1", "8", "64"]
    assert section.title == RECORDED and "Nothing of it was measured here" in section.markdown
    assert f"{RECORDED}: {grid.title}\n" in summary(replace(REPORT, sections=[*REPORT.sections, section]))


def test_nothing_is_shown_where_nothing_is_recorded(tmp_path: Path):
    assert not any(recorded_grids(post, tmp_path) for post in ("000", "001", "002", "003", "004"))


def test_a_file_that_is_no_result_is_named(runs: Path, tmp_path: Path):
    (runs / "executors.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="data/runs/gpu/executors.json is no result as `roseinfer bench executors`"):
        recorded_grids("003", tmp_path)
