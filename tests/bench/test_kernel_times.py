"""What a run of `bench kernels` leaves for the lessons."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from course.teach.measure.recorded import recorded, recorded_kernels, recorded_trace
from roseinfer.bench.kernel_times import Shape
from roseinfer.bench.ladder import ladder
from roseinfer.bench.provenance import describe_host, short_commit
from roseinfer.bench.settings import Ladder
from roseinfer.cli.main import main
from roseinfer.generate import decode_step
from roseinfer.profiling import capture
from stages import PreallocGather

SHAPE = Shape(2, 16, 1, 2, 16, 16, "float32")


@pytest.mark.slow
def test_the_command_writes_what_lesson_07_shows(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr("roseinfer.bench.kernel_times.kernel_times.__defaults__", ((SHAPE,),))
    nothing = recorded_kernels(tmp_path)
    assert (
        repr(nothing) == "from the GPU reports in data/runs, where there are any: times of the paged attention kernel"
    )
    (tmp_path / "runs" / "gpu").mkdir(parents=True)
    with monkeypatch.context() as without_pandas:  # as the machine of a GPU report may be
        without_pandas.setitem(sys.modules, "pandas", None)
        assert main(["bench", "kernels", "--device", "cpu", "--output", str(tmp_path / "runs/gpu/kernels.json")]) == 0
    found = recorded_kernels(tmp_path)
    assert repr(found) == repr(nothing) and len(found.cards) == 1
    for text in ("Recorded on ", "KV GB/s", "of read bandwidth", "float32"):
        assert text in found.to_html()


def test_a_file_from_before_there_were_other_batches_has_decodes():
    card = next(one for one in recorded_kernels().cards if "b28c777" in one)
    assert card.count("float") == 5 and "29.1%" in card and ">nan<" not in card


def test_recorded_shows_the_ladders_of_a_model(tmp_path, small):
    (tmp_path / "runs" / "gpu").mkdir(parents=True)
    nothing = repr(recorded("small", folder=tmp_path))
    for batch_size in (1, 2):
        result = ladder(
            [PreallocGather], small, Ladder(batch_size=batch_size, max_new_tokens=3, repeats=1, with_hf=False)
        )
        written = json.loads(result.to_json()) | {"arguments": {"model": "small", **result.arguments}}
        (tmp_path / "runs" / "gpu" / f"ladder-{batch_size}.json").write_text(json.dumps(written))
    both = recorded("small", folder=tmp_path)
    name = f"Recorded on {result.device}, commit {short_commit(result.commit)}"
    assert len(both.cards) == 2 and all(name in card and "not measured here" in card for card in both.cards)
    one = recorded("small", batch_size=2, folder=tmp_path)
    assert len(one.cards) == 1 and result._repr_mimebundle_()["text/html"] in one.to_html()
    assert nothing == repr(both) == "from the GPU reports in data/runs, where there are any: ladders of small"
    assert "once there is a GPU report" in recorded("random:gpt2", folder=tmp_path).to_html()


def test_the_newest_trace_of_a_stage(tmp_path, small):
    from roseinfer.bench.contenders import StageContender

    stage, seqs = StageContender(PreallocGather, small, [[1, 2]], max_new_tokens=6).at_step(0)
    trace = capture(lambda: decode_step(stage, seqs), steps=1, warmup=1)
    assert recorded_trace(PreallocGather, tmp_path) is None
    for gpu, when in (("a", "2026-01-31"), ("b", "2026-02-28"), ("c", "2025-12-31")):
        trace.data["roseinfer"]["recorded_at"] = when
        trace.to_tensorboard(tmp_path / "traces" / gpu / PreallocGather.name, worker=PreallocGather.name)
    newest = recorded_trace("s02_prealloc_gather", tmp_path)
    assert newest.metadata["recorded_at"] == "2026-02-28"
    assert newest.count("roseinfer.decode_step_sessions.total") == 1


def test_short_commit():
    assert [short_commit(c) for c in (None, "0123456789", "0123456789-dirty")] == [
        "unknown",
        "0123456",
        "0123456-dirty",
    ]


def test_what_a_report_leaves_in_a_clone_does_not_make_its_code_dirty(tmp_path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr("roseinfer.bench.provenance.ROOT", tmp_path)
    assert describe_host(torch.device("cpu"))["commit"] is None
    monkeypatch.setenv("ROSEINFER_COMMIT", "abc")
    assert describe_host(torch.device("cpu"))["commit"] == "abc"
    git("init")
    (tmp_path / "code.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "code")
    for folder in ("runs", "traces"):
        (tmp_path / "data" / folder).mkdir(parents=True)
        (tmp_path / "data" / folder / "new.json").write_text("{}")
    assert len(describe_host(torch.device("cpu"))["commit"]) == 40
    (tmp_path / "code.py").write_text("2")
    assert describe_host(torch.device("cpu"))["commit"].endswith("-dirty")
