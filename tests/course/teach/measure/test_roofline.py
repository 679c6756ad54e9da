"""teach.roofline: bytes, flops and intensity of each stage, and where the points lie under the roof."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from course import teach
from course.teach.measure import roofline
from roseinfer.bench.ladder import ladder
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.settings import Ladder
from roseinfer.profiling import Machine, decode_floor
from stages import BlockTable, NaiveCat, PreallocGather

SIZES = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 3, "repeats": 1}


@pytest.fixture(scope="module")
def measured(small) -> LadderResult:
    machine = Machine("A machine", "cpu", torch.float32, read_bytes_per_s=1e9, flops_per_s=4e9, samples={})
    with patch("roseinfer.bench.ladder.measure_machine", return_value=machine):
        return ladder([NaiveCat, PreallocGather, BlockTable], small, Ladder(with_hf=False, **SIZES))


@pytest.fixture
def result(measured) -> LadderResult:
    """With times of a made-up machine: 1 GB/s and 4 GFLOP/s, and each stage at a quarter of what it could reach."""
    floor = measured.floor | {"seconds": (measured.floor["weight_bytes"] + measured.floor["kv_bytes"]) / 1e9}
    rows = []
    for row in measured.rows:
        moved = floor["weight_bytes"] + floor["kv_bytes"] + 2 * row["bytes_copied"] + row["bytes_filled"]
        rows.append(row | {"step_ms": 4e3 * moved / 1e9})
    return replace(measured, machine={"read_bytes_per_s": 1e9, "flops_per_s": 4e9}, floor=floor, rows=rows)


def data_of(view, field: str) -> list[dict]:
    """The chart's data that have this field."""
    [rows] = [rows for rows in view.chart.spec["datasets"].values() if field in rows[0]]
    return rows


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[3:]]


@pytest.mark.slow
def test_text_plain_is_bytes_flops_and_intensity(result, small):
    floor = decode_floor(small.config, [5, 5], small.dtype)
    least = floor.weight_bytes + floor.kv_bytes
    rows = cells(repr(teach.roofline(result)))
    assert [row[0] for row in rows] == ["floor", "s01_naive_cat", "s02_prealloc_gather", "s05_block_table"]
    assert rows[0] == ["floor", f"{least:,}", f"{floor.flops:,}", f"{floor.flops / least:.3f}"]
    for row, counted in zip(rows[1:], result.rows, strict=True):
        moved = least + 2 * counted["bytes_copied"] + counted["bytes_filled"]
        assert row[1:] == [f"{moved:,}", f"{floor.flops:,}", f"{floor.flops / moved:.3f}"]
    assert float(rows[1][3]) < float(rows[2][3]) < float(rows[0][3])  # what is not copied raises the intensity


def test_times_are_in_the_live_view_only(result):
    view = teach.roofline(result)
    page = view.table.to_html()
    for word in ("step ms", "GB/s", "of the roof"):
        assert word not in repr(view) and word in page
    assert page.count(">25.0%<") == 3 and page.count(">100.0%<") == 1  # a quarter each; the floor is on the roof
    assert "again at every step, at 1.0 GB/s, computes 4 GFLOP/s" in page and "4.0 flops a byte" in page
    assert view.chart.spec["title"]["subtitle"] == "the roof: reading 1.0 GB/s, then arithmetic 4 GFLOP/s"


def test_a_chart_is_shown_and_a_table_below_it(result, monkeypatch):
    shown = []
    monkeypatch.setattr(roofline, "display", lambda *parts: shown.extend(parts))
    view = teach.roofline(result)
    view._ipython_display_()
    assert shown == [view.chart, view.table] and repr(view) == repr(view.table)
    names = "F: floor, 1: s01_naive_cat, 2: s02_prealloc_gather, 3: s05_block_table"
    assert repr(view.chart) == f"Roofline of one decode step: {result.title}: {names}"
    assert view.chart.png.startswith(b"\x89PNG")


def test_the_roof_is_bandwidth_first_and_then_compute(result):
    frame = teach.roofline(result).table.df
    assert (frame["flops per byte"] < 4).all() and set(frame["the roof here"]) == {"reading"}
    assert frame["GB/s"].tolist() == pytest.approx([1.0, 0.25, 0.25, 0.25])
    frame = teach.roofline(replace(result, machine=result.machine | {"flops_per_s": 1e8})).table.df
    assert set(frame["the roof here"]) == {"arithmetic"}
    assert frame["of the roof"].tolist() == pytest.approx((frame["GFLOP/s"] / 0.1).tolist())


@pytest.mark.parametrize("faster", [1, 40])
def test_every_point_is_in_the_picture_one_above_the_roof_too(result, faster):
    """A small model's copies may come from a cache, faster than memory was measured."""
    rows = [row | {"step_ms": row["step_ms"] / faster} for row in result.rows]
    view = teach.roofline(replace(result, rows=rows))
    encoding = view.chart.spec["layer"][0]["encoding"]
    for axis, field in (("x", "flops per byte"), ("y", "GFLOP/s")):
        low, high = encoding[axis]["scale"]["domain"]
        assert all(low < row[field] < high for row in data_of(view, "sign"))
        [roof] = [rows for rows in view.chart.spec["datasets"].values() if "sign" not in rows[0]]
        assert all(low <= row[field] <= high for row in roof)


def test_who_was_not_counted_has_no_point_and_is_named(result):
    hf = {key: result.rows[0][key] for key in ("stage", "step_ms")} | {"stage": "HF generate"}
    view = teach.roofline(replace(result, rows=[*result.rows, hf]))
    assert repr(view) == repr(teach.roofline(result))
    assert "without a point: HF generate" in view.table.note
    with pytest.raises(ValueError, match="counted, got .'HF generate'"):
        teach.roofline(replace(result, rows=[hf]))
