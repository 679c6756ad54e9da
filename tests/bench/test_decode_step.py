"""A profile of a decode step: how a trace of a GPU is summed up, and what the command writes."""

from __future__ import annotations

import json

import pytest

from roseinfer.bench.decode_step import kernels_of, short_name
from roseinfer.cli.main import main

PROFILE = [
    {"cat": "kernel", "name": "attend_kernel", "dur": 8.0},
    {"cat": "gpu_memcpy", "name": "Memcpy DtoD", "dur": 2.0},
    {"cat": "kernel", "name": "attend_kernel", "dur": 7.0},
    {"cat": "kernel", "name": "void at::native::add<8, c10::BFloat16>(int)", "dur": 5.0},
    {"cat": "gpu_memset", "name": "Memset", "dur": 1.0},
    {"cat": "cpu_op", "name": "aten::add", "dur": 9.0},
    {"ph": "M", "name": "process_name"},
]


def test_kernels_are_summed_up_by_name_and_copies_counted_apart():
    kernels, copies = kernels_of(PROFILE)
    assert copies == 2
    assert [(one["name"], one["count"]) for one in kernels] == [("attend_kernel", 2), ("add<8, BFloat16>", 1)]
    assert [one["seconds"] for one in kernels] == pytest.approx([15e-6, 5e-6])
    assert [one["share"] for one in kernels] == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("attend_kernel", "attend_kernel"),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, T)",
            "vectorized_layer_norm_kernel<BFloat16, float, false>",
        ),
        (
            "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1>(cutlass_75_::Params)",
            "Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_...",
        ),
    ],
)
def test_names_are_short_enough_to_read(kernel: str, name: str):
    assert short_name(kernel) == name


def test_the_command_writes_rows_and_samples(tmp_path, capsys):
    path = tmp_path / "step.json"
    models = "random:tiny-qwen2,random:tiny-llama"
    sizes = ["--batch-sizes", "1,2", "--context", "8", "--repeats", "3", "--device", "cpu"]
    assert main(["bench", "step", "--model", models, *sizes, "--output", str(path)]) == 0
    shown, written = capsys.readouterr().out, json.loads(path.read_text())
    assert [(row["model"], row["batch_size"]) for row in written["rows"]] == [
        (f"random:tiny-{name}", size) for name in ("qwen2", "llama") for size in (1, 2)
    ]
    assert all(len(seconds) == 3 for seconds in written["samples"]) and written["arguments"]["context"] == 8
    assert "R" in shown.splitlines()[0].split() and "random:tiny-qwen2, batch 2" in shown
