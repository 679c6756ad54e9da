"""What lessons show of runs that were recorded on a GPU."""

from __future__ import annotations

import json

import pytest

from course import teach


def step(batch_size, seconds, *kernels, model="random:gpt2"):
    """A row as `roseinfer bench step` writes it, as far as it is read. kernels: a name and its seconds each."""
    listed = [{"name": name, "count": 12, "seconds": each, "share": None} for name, each in kernels]
    sizes = {"launches": 12 * len(kernels), "bytes_seconds": 60e-6, "kv_bytes": 8_000_000}
    return {"model": model, "batch_size": batch_size, "seconds": seconds, "kernels": listed} | sizes


def write(folder, name, rows, **more):
    place = folder / "runs" / name
    place.mkdir(parents=True)
    run = {"device": f"card of {name}", "commit": "b28c777aaaa", "copy_bytes_per_s": 4e12, "rows": rows, **more}
    run["arguments"] = {"dtype": "bfloat16", "context": 300}
    (place / "step.json").write_text(json.dumps(run))


def cells(card):
    """The texts of a card's cells, row by row."""
    return [row.split("</td>")[:-1] for row in card.split("<tr>")[2:]]


def texts(card):
    return [[cell.rpartition(">")[2] for cell in row] for row in cells(card)]


def test_attention_has_a_time_where_kernels_do_not_overlap(tmp_path):
    one = step(1, 600e-6, ("attend_kernel", 90e-6), ("store_kernel", 10e-6), ("gemm", 300e-6))
    other = step(64, 300e-6, ("attend_kernel", 150e-6), ("gemm", 200e-6))
    write(tmp_path, "h200", [one, other, step(1, 1e-3, ("gemm", 1e-3), model="random:qwen2.5-7b")], note="as measured")
    [card] = teach.recorded_steps(folder=tmp_path).cards
    assert texts(card) == [["1", "36", "600", "60", "100", "2"], ["64", "24", "300", "60", "kernels overlap", "2"]]
    assert "card of h200, commit b28c777" in card and "not measured here" in card and "as measured" in card
    assert "random:gpt2 in bfloat16, 300 cached tokens a sequence" in card


def test_a_cpus_steps_and_other_models_are_left_out(tmp_path):
    write(tmp_path, "cpu", [step(1, 1e-3, ("aten::add", None))])
    write(tmp_path, "other", [step(1, 1e-3, ("gemm", 1e-3), model="random:qwen2.5-7b")])
    shown = teach.recorded_steps(folder=tmp_path)
    assert shown.cards == [] and "once there is a GPU report" in shown.to_html()


def test_another_file_is_refused(tmp_path):
    (tmp_path / "runs" / "odd").mkdir(parents=True)
    (tmp_path / "runs" / "odd" / "step.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match="data/runs/odd/step.json is no result as `roseinfer bench step` writes it"):
        teach.recorded_steps(folder=tmp_path)


def test_the_runs_that_lessons_are_about_are_there():
    """Lessons 07, 13, 16 and 18 speak of them."""
    before, after = teach.recorded_steps().cards[:2]
    assert "NVIDIA H200" in before and "kernels overlap" not in before and "kernels overlap" in after
    assert any("paged_attention_triton" in card for card in teach.recorded_kernels().cards)
    shown = teach.recorded_executors()
    *executors, host = shown.cards
    assert all("one behind" in card and "yes" in card for card in executors) and len(executors) >= 2
    assert "planning us" in host and "H200" not in repr(shown)
