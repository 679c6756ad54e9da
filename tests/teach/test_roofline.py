"""teach.roofline: bytes, flops and intensity of each stage, and where the points lie under the roof."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from roseinfer import teach
from roseinfer.bench import LadderResult, ladder
from roseinfer.profiling import decode_floor
from stages import BlockTable, NaiveCat, PreallocGather

SIZES = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 3, "repeats": 1}
MARK = re.compile(r'left: ([\d.]+)px; top: ([\d.]+)px; width: 18px[^"]*" title="(\S+?):')


@pytest.fixture(scope="module")
def measured(small) -> LadderResult:
    return ladder([NaiveCat, PreallocGather, BlockTable], small, with_hf=False, **SIZES)


@pytest.fixture
def result(measured) -> LadderResult:
    """With times of a made-up machine: 1 GB/s and 4 GFLOP/s, and each stage at a quarter of what it could reach."""
    floor = measured.floor | {"seconds": (measured.floor["weight_bytes"] + measured.floor["kv_bytes"]) / 1e9}
    rows = []
    for row in measured.rows:
        moved = floor["weight_bytes"] + floor["kv_bytes"] + 2 * row["bytes_copied"] + row["bytes_filled"]
        rows.append(row | {"step_ms": 4e3 * moved / 1e9})
    return replace(measured, machine={"read_bytes_per_s": 1e9, "flops_per_s": 4e9}, floor=floor, rows=rows)


def cells(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[3:]]


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
    page = view._repr_mimebundle_()["text/html"]
    assert view._repr_mimebundle_()["text/plain"] == repr(view)
    for word in ("step ms", "GB/s", "of the roof"):
        assert word not in repr(view) and word in page
    assert page.count(">25.0%<") == 3 and page.count(">100.0%<") == 1  # a quarter each; the floor is on the roof
    assert "compute: 4 GFLOP/s" in page and "bandwidth, 1.0 GB/s" in page and "4.0 flops a byte" in page


def test_the_roof_is_bandwidth_first_and_then_compute(result):
    view = teach.roofline(result)
    assert (view.roof(0.5), view.roof(4), view.roof(100)) == (0.5e9, 4e9, 4e9)
    floor = view.points[0]
    assert floor.flops_per_s == pytest.approx(view.roof(floor.intensity))


def test_marks_lie_where_their_numbers_say(result):
    page = teach.roofline(result).to_html()
    marks = {name: (float(x), float(y)) for x, y, name in MARK.findall(page)}
    assert set(marks) == {"floor", "s01_naive_cat", "s02_prealloc_gather", "s05_block_table"}
    assert all(0 <= x <= 640 and 0 <= y <= 300 for x, y in marks.values())
    assert marks["s01_naive_cat"][0] < marks["s02_prealloc_gather"][0] < marks["floor"][0]  # more flops a byte
    # All stages are at a quarter of the slope: the same distance under it, along a line parallel to it.
    (x1, y1), (x2, y2) = marks["s01_naive_cat"], marks["s02_prealloc_gather"]
    (x0, y0), (x3, y3) = marks["floor"], marks["s05_block_table"]
    slope = (y2 - y1) / (x2 - x1)
    assert (y3 - y1) / (x3 - x1) == pytest.approx(slope, abs=0.05)
    assert y0 < y1 + slope * (x0 - x1) - 10
    for sign, name in zip("F123", marks, strict=True):
        assert re.search(rf'title="{name}:[^"]*">{sign}</div>', page) and f">{sign}</span> {name}" in page


def test_a_point_above_the_roof_is_still_in_the_picture(result):
    """A small model's copies may come from a cache, faster than memory was measured."""
    rows = [row | {"step_ms": row["step_ms"] / 40} for row in result.rows]
    page = teach.roofline(replace(result, rows=rows)).to_html()
    marks = [(float(x), float(y)) for x, y, _ in MARK.findall(page)]
    assert len(marks) == 4 and all(0 <= x <= 640 and 0 <= y <= 300 for x, y in marks)
    boxes = re.findall(r"top: ([\d.-]+)px; width: ([\d.-]+)px; height: ([\d.-]+)px; background", page)
    assert len(boxes) == 3
    assert all(float(w) >= 0 and float(h) >= 0 and float(top) + float(h) <= 300.1 for top, w, h in boxes)


def test_who_was_not_counted_has_no_point_and_is_named(result):
    hf = {key: result.rows[0][key] for key in ("stage", "step_ms")} | {"stage": "HF generate"}
    view = teach.roofline(replace(result, rows=[*result.rows, hf]))
    assert repr(view) == repr(teach.roofline(result))
    assert "without a point: HF generate" in view.to_html()
    with pytest.raises(ValueError, match="counted, got .'HF generate'"):
        teach.roofline(replace(result, rows=[hf]))


def test_stages_are_raced(small, result):
    view = teach.roofline([NaiveCat, PreallocGather, BlockTable], small, **SIZES)
    assert repr(view) == repr(teach.roofline(result))


def test_bad_arguments_are_refused(result, small):
    with pytest.raises(ValueError, match="model must be given"):
        teach.roofline([NaiveCat])
    with pytest.raises(ValueError, match="takes neither"):
        teach.roofline(result, small)
    with pytest.raises(ValueError, match="takes neither"):
        teach.roofline(result, batch_size=2)
    with pytest.raises(ValueError, match="stages must"):
        teach.roofline([], small)
