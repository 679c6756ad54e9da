"""What a3's pictures show is what was recorded; arenas; and solutions that compile for GPUs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fresh_python import printed_by
from rung_answers import SOLUTIONS, interpreted, kernel

from course import teach
from course.teach.exercises.wrong import Wrong
from course.teach.lessona3.arena import GAP, Arena
from course.teach.lessona3.compiled_product import instruction_of
from course.teach.lessona3.rung_checks import run_unwatched
from course.teach.lessona3.rung_picture import steps_of
from course.teach.lessona3.rung_record import record_rung
from course.teach.lessona3.rungs import RUNGS, pool, scale_of, tokens_of

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]

HEAD = "from roseinfer import triton_mode\ntl = triton_mode.language()\n\n\n"


# The arena


def test_tensors_keep_their_values_and_strides_and_lie_far_apart():
    w, ids = torch.randn(3, 5).T, torch.tensor([4, 0, 2], dtype=torch.int32)
    arena = Arena({"w": w, "ids": ids})
    assert torch.equal(arena.tensors["w"], w) and arena.tensors["w"].stride() == w.stride()
    assert torch.equal(arena.tensors["ids"], ids) and arena.tensors["ids"].dtype == torch.int32
    assert arena.places["ids"].start - sum(arena.places["w"]) == GAP
    assert int(arena.own.sum()) == w.numel() + ids.numel()
    assert arena.buffer.isnan().sum() >= 3 * GAP


def test_what_lies_between_the_rows_of_a_view_is_no_element():
    arena = Arena({"w": torch.randn(2, 6)[:, 1:4]})
    offsets = np.arange(arena.places["w"].size) + arena.places["w"].start
    assert arena.is_own(offsets).tolist() == [0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0]
    assert not arena.is_own(np.array([-1, 10**9])).any()
    assert arena.name_at(arena.places["w"].start + 8) == "w[1, 1]"


def test_a_pools_ids_are_no_indices_and_its_empty_slots_are_nan():
    for context_len in range(1, 14):
        case = pool(context_len, 4, 2)
        used = len(case.block_table)
        assert used == -(-context_len // 4) and not (case.block_table == torch.arange(used)).any()
        keys, values = (tokens_of(cache, case.block_table) for cache in (case.k_cache, case.v_cache))
        assert int(keys.isnan().any(1).sum()) == int(values.isnan().any(1).sum()) == used * 4 - context_len
        assert not keys[:context_len].isnan().any()


def test_scores_of_a_kind_are_where_it_says():
    def scores(kind: str) -> torch.Tensor:
        cases = [pool(context_len, 4, head_dim, kind) for context_len in range(1, 9) for head_dim in (2, 4)]
        keys = [tokens_of(case.k_cache, case.block_table) for case in cases]
        drawn = [own @ case.q.double() * scale_of(case.q.numel()) for own, case in zip(keys, cases, strict=True)]
        return torch.stack([part[~part.isnan()].max() for part in drawn])

    assert scores("large").max() > 300
    assert scores("").abs().max() < 20
    far = scores("far below 0")
    assert far.min() > -520 and far.max() < -480


@interpreted
def test_a_launch_that_is_not_watched_is_refused_when_it_writes_outside():
    """As on a GPU, where accesses cannot be seen."""
    launch = RUNGS["a3.2"].launch(10, 4)
    right = run_unwatched(launch, kernel("a3.2"), "cpu")
    torch.testing.assert_close(right, launch.tensors["x"] + launch.tensors["y"])
    for change in (("total, mask=real", "total"), ("out + at", "y + at")):
        with pytest.raises(Wrong, match="memory outside of out .* a kernel writes nothing but out"):
            run_unwatched(launch, kernel("a3.2", change), "cpu")


# Records and pictures


@interpreted
def test_a_record_counts_lanes_and_what_they_touch():
    found = record_rung("a3.2", 1000, 256)
    assert (found.programs, found.lanes("load", "x"), found.masked("load", "x")) == (4, 1024, 24)
    assert found.touched("load", "x") == found.touched("store", "out") == 1000


@interpreted
@pytest.mark.parametrize("rung_id", RUNGS)
def test_a_picture_has_a_frame_per_step_and_marks_what_is_touched(rung_id):
    picture, found = teach.draw_rung(rung_id), record_rung(rung_id)
    steps = list(steps_of(found))
    assert len(picture.frames) == len(steps) and [each for step in steps for each in step] == found.accesses
    for frame, step in zip(picture.frames, steps, strict=True):
        cells = [cell for panel in frame.panels for cell in panel.cells]
        now = [cell for cell in cells if cell.colour != "" and cell.strength > 0.5]
        assert len(now) == len({(each.tensor, offset) for each in step for offset in each.touched})
        assert sum(cell.hatched for cell in cells) == len({(a.tensor, o) for a in step for o in a.masked})


@interpreted
def test_the_picture_of_ones_own_kernel_shows_its_own_steps():
    halves = """    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK // 2)
    for half in range(0, BLOCK, BLOCK // 2):
        tl.store(out + at + half, tl.load(x + at + half) + tl.load(y + at + half))
"""
    picture = teach.draw_rung("a3.1", kernel("a3.1", halves))
    assert [frame.heading for frame in picture.frames][:2] == [
        "program_id 0 (the first of 3), its step 0 of 1",
        "program_id 0 (the first of 3), its step 1 of 1",
    ]
    assert picture.frames[1].says == "loads x[2..3]; loads y[2..3]; stores out[2..3]."
    assert repr(picture) == ("a3.1 add: 3 programs; values stored to out 12 of 12; loaded from x 12 of 12; y 12 of 12")


@interpreted
def test_the_last_step_of_paged_attention_is_told():
    *_, last = teach.draw_rung("a3.8").frames
    assert last.heading == "program_id 0 (the only one), its step 2 of 2"
    assert last.says == (
        "loads block_table[2]; loads k_cache[16..23] (8 lanes masked); loads v_cache[16..23] (8 lanes masked); "
        "stores out[0..3]."
    )


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"rung must be one of a3.0, a3.1, .*, got 'a3.10'"):
        teach.draw_rung("a3.10")


@interpreted
def test_a_kernel_that_goes_outside_is_not_drawn():
    with pytest.raises(ValueError, match="launched as one of a3.2: program 2 loads offset 10 of x"):
        teach.draw_rung("a3.2", kernel("a3.2", [(", mask=real", "")]))


@interpreted
def test_a_kernel_that_cannot_be_launched_is_not_drawn_and_a_wrong_one_is():
    with pytest.raises(ValueError, match="kernel of a3.1 must load or store something to be drawn"):
        teach.draw_rung("a3.1", kernel("a3.1", "    ...\n"))
    with pytest.raises(ValueError, match="launched as one of a3.1: it raised TypeError: copy_kernel"):
        teach.draw_rung("a3.1", RUNGS["a3.0"].kernel)
    with pytest.raises(ValueError, match="launched as one of a3.1: it raised NameError: name 'z' is not defined"):
        teach.draw_rung("a3.1", kernel("a3.1", ("(y + at)", "(z + at)")))
    for no_kernel, shown in (("add_kernel", "str 'add_kernel'"), (printed_by, "function <function printed_by")):
        with pytest.raises(ValueError, match=f"kernel must be decorated with @triton_mode.jit, got {shown}"):
            teach.draw_rung("a3.1", no_kernel)
    assert teach.draw_rung("a3.1", kernel("a3.1", ("tl.load(x + at) + tl.load(y + at)", "tl.load(x + at)"))).frames


@interpreted
def test_a_case_that_a_rung_does_not_have_is_refused():
    with pytest.raises(ValueError, match="cannot be launched as one of a3.2: it raised TypeError: add_any"):
        record_rung("a3.2", 10)


# Compiled, without a GPU

COMPILED = {
    "a3.4": ("softmax_kernel", {"COLUMNS": 128}),
    "a3.6": ("long_softmax_kernel", {"TILE": 256}),
    "a3.8": ("paged_attention_kernel", {"HEAD_DIM": 64, "BLOCK_SIZE": 16}),
    "a3.9": ("matmul_kernel", {"ROWS": 32, "COLUMNS": 32, "INNER": 16}),
}


@interpreted
def test_where_kernels_are_compiled_nothing_spills_and_a_child_records(tmp_path):
    sources = "\n\n".join(SOLUTIONS[exercise_id] for exercise_id in ("a3.2", *COMPILED))
    (tmp_path / "solved.py").write_text(HEAD + sources)
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
import solved
from course import teach
from roseinfer import triton_mode
from roseinfer.kernels.aot import ARCHITECTURES, compile_for
pointers = dict.fromkeys(("out", "x", "w", "q", "k_cache", "v_cache"), "*fp32")
pointers |= {{"block_table": "*i32", "scale": "fp32"}}
for name, shape in {list(COMPILED.values())!r}:
    kernel = getattr(solved, name)
    types = {{name: pointers.get(name, "i32") for name in kernel.arg_names}}
    for arch in ARCHITECTURES:
        print(name, arch, compile_for(kernel, types, (), shape, arch, 4).stack_bytes)
triton_mode.require_triton = lambda: None  # there is no GPU, and none is needed to record
print(triton_mode.MODE, teach.record_rung("a3.2", kernel=solved.add_any_kernel).accesses)
"""
    compiled = [f"{name} {arch} 0" for name, _ in COMPILED.values() for arch in (80, 90)]
    recorded = f"compile {record_rung('a3.2').accesses}"
    assert printed_by(code, ROSEINFER_TRITON="compile").splitlines() == [*compiled, recorded]


def test_an_instruction_multiplies_what_its_name_says():
    assert instruction_of("fma.rn.f32") == ("fma", 1, 1)
    assert instruction_of("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == ("mma m16n8k16", 32, 16 * 8 * 16)
    assert instruction_of("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16") == (
        "wgmma m64n64k16",
        128,
        64 * 64 * 16,
    )


def test_a_compiled_product_makes_all_products_of_its_tiles_whatever_the_instruction():
    made = teach.compile_product().df
    assert set(made["products"]) == {64 * 64 * 32}
    names = made.set_index(["numbers", "GPU"])["instruction"]
    assert list(names["float32"]) == ["fma", "fma"]
    assert [name.split()[0] for name in names["bfloat16"]] == ["mma", "wgmma"]
