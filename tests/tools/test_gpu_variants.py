"""tools/gpu_variants.py: every version of the fused kernels compiles, and asks for weights before it waits."""

from __future__ import annotations

import json
import re

import pytest
import torch
from fresh_python import printed_by

from roseinfer.engine import fused_step
from roseinfer.engine.runner import Runner
from roseinfer.kernels import fused_triton
from roseinfer.models import load_model
from tools.gpu_variants import VERSIONS, compared, replay_of, version_of

# For a GPU that lets launches overlap: of each version a product and a sum's norm, of the first one with SiLU as well.
# Of versions for wide models all products of Qwen2.5-7B.
# And every other kernel of a step: what chooses GPT-2's tokens reads rows that are 50,304 wide.
COMPILED = """
import json, re, tempfile
from pathlib import Path
from roseinfer.kernels import aot, fused_triton, paged_triton
from roseinfer.kernels.aot import compiled, flat_programs, fused_programs, resources
from tools.gpu_variants import VERSIONS, version_of

USUAL = aot.PRODUCTS
WIDE = (4608, 3584, "rms", ""), (3584, 3584, "", ""), (18944, 3584, "rms", "silu"), (3584, 18944, "", "")

NORM = {"WIDTH": 768, "PAD": 1024, "CENTERED": True, "PDL": True}
found, folder = {}, Path(tempfile.mkdtemp())
for name, version in VERSIONS.items():
    module = version_of(version.edits, folder)
    aot.PRODUCTS = WIDE if version.for_wide else USUAL
    kinds = ("", "silu") if version.for_wide else ("gelu",) if found else ("gelu", "silu")
    of_all = [
        compiled(p.kernel, p.types, p.aligned, {**p.constexprs, "PDL": True}, 90, p.warps)
        for p in fused_programs(module) if p.about["dtype"] == "bf16" and p.about["then"] in kinds
    ]
    types = dict.fromkeys(("out", "total", "x", "y", "weight", "bias"), "*bf16") | {"eps": "fp32"}
    of_all.append(compiled(module.add_norm_kernel, types, types.keys() - {"eps"}, NORM, 90, 4))
    found[name] = [
        {"ptx": kernel.asm["ptx"], "stack": resources(kernel).stack_bytes, "shared": kernel.metadata.shared}
        for kernel in of_all
    ]

def ptx(kernel, warps=4, **shape):
    pointers = dict.fromkeys(kernel.arg_names, "*bf16")
    of_64_bits = "tokens", "token_ids", "positions", "sources", "last_tokens"
    types = pointers | dict.fromkeys(of_64_bits, "*i64") | {"slot_mapping": "*i32"}
    integers = "num_values", "num_rows", "num_sources", "k_token", "k_head", "v_token", "v_head"
    numbers = {"eps": "fp32"} | dict.fromkeys(integers, "i32")
    shape["PDL"] = True
    aligned = types.keys() - numbers.keys() - shape.keys()
    return compiled(kernel, types | numbers, aligned, shape, 90, warps).asm["ptx"]

HEADS = {"NUM_HEADS": 14, "NUM_TURNED": 16, "NUM_ALL": 18, "HALF": 32, "HALF_PAD": 32, "HEADS": 4}
others = {
    "embed": ptx(fused_triton.embed_kernel, WIDTH=768, SPAN=1024),
    "rotate": ptx(fused_triton.rotate_kernel, **HEADS),
    "activate": ptx(fused_triton.activate_kernel, WIDTH=4864, THEN="silu", SPAN=1024),
    "choose": ptx(fused_triton.choose_kernel, 16, NUM_LOGITS=50257, WIDTH=50304, SPAN=8192),
    "store": ptx(paged_triton.store_kernel, **paged_triton.store_shape(12, 64, 16)),
}
for p in flat_programs():
    name = p.about["kernel"]
    if p.about["dtype"] == "bf16" and name in ("attend, decode", "attend, prefill") and name not in others:
        others[name] = compiled(p.kernel, p.types, p.aligned, {**p.constexprs, "PDL": True}, 90, p.warps).asm["ptx"]
print(json.dumps({"versions": found, "others": others}))
"""
OF_MEMORY = re.compile(r"prefetch\.global\.L2|griddepcontrol\.\w+|(?:ld|st|atom)(?:\.\w+)*\.global|cp\.async\.c[ag]")
SHARED_BYTES = 227 * 1024  # that a program may have on such a GPU
WAIT, LAUNCH, PREFETCH = "griddepcontrol.wait", "griddepcontrol.launch_dependents", "prefetch.global.L2"


@pytest.fixture(scope="module")
def compiled() -> dict:
    return json.loads(printed_by(COMPILED, ROSEINFER_TRITON="compile"))


@pytest.mark.slow
@pytest.mark.needs_triton
def test_logits_are_read_16_bytes_at_a_time(compiled):
    choice = compiled["others"]["choose"]
    assert "ld.global.b16" not in choice and "cp.async.cg" in choice


@pytest.mark.slow
@pytest.mark.needs_triton
def test_the_other_kernels_of_a_step_wait_before_they_read_and_write(compiled):
    for name, ptx in compiled["others"].items():
        first, second, *later = OF_MEMORY.findall(ptx)
        assert (first, second) == (WAIT, LAUNCH) and later, name
    assert len(compiled["others"]) == 7


@pytest.mark.slow
@pytest.mark.needs_triton
def test_a_token_is_replaced_after_every_warp_has_read_it(compiled):
    before, after = compiled["others"]["embed"].split("bar.sync")
    assert before.count("ld.global") == 3 and "st.global" not in before and "st.global" in after


@pytest.mark.slow
@pytest.mark.needs_triton
def test_weights_are_asked_for_before_the_wait_and_nothing_is_read_before_it(compiled):
    found = compiled["versions"]
    assert found.keys() == VERSIONS.keys()
    for name, kernels in found.items():
        for kernel in kernels:
            assert kernel["stack"] == 0 and kernel["shared"] <= SHARED_BYTES
            order = OF_MEMORY.findall(kernel["ptx"])
            early, late = order[: order.index(WAIT)], order[order.index(WAIT) + 1 :]
            launch = late if LAUNCH in late else early
            assert (launch is early) == (name == "next launch begins earlier")
            launch.remove(LAUNCH)
            assert early == [PREFETCH] * len(early) and PREFETCH not in late
            assert bool(early) == (name != "nothing asked for early")


@pytest.mark.slow
@pytest.mark.needs_triton
def test_each_version_is_timed_on_each_size_that_it_is_for():
    lengths = []
    for result in compared({"tiny": (17, 1)}, "cpu", rounds=2, replays=1):
        lengths.append(len(result.rows))
    rows = [(row["batch_size"], row["version"]) for row in result.rows]
    narrow = [name for name, version in VERSIONS.items() if not version.for_wide]
    few = [name for name in narrow if "64 rows" not in name]
    assert rows == [*((17, name) for name in narrow), *((1, name) for name in few)]
    assert lengths == [len(narrow), len(rows)] and len(narrow) < len(VERSIONS)
    assert all(len(medians) == 2 for medians in result.samples) and all(row["seconds"] > 0 for row in result.rows)
    assert "next launch begins earlier" in result.text() and json.loads(result.to_json())["rows"] == result.rows


@pytest.mark.slow
@pytest.mark.needs_triton
@pytest.mark.parametrize(("few_rows", "products"), [(16, 4), (0, 0)])
@torch.inference_mode()
def test_a_step_is_computed_by_the_kernels_of_its_version(tmp_path, monkeypatch, few_rows, products):
    """As on a GPU, where the engine has a FusedStep."""
    monkeypatch.setattr(Runner, "fused_step", lambda runner: fused_step.FusedStep(runner.model))
    monkeypatch.setattr(Runner, "whole_step", lambda runner: None)
    model = load_model("tiny", device="cpu", dtype=torch.bfloat16)
    kernels, calls = version_of({}, tmp_path), []

    def linear(x, matrix, **options):
        calls.append(matrix)
        return x.new_zeros(len(x), len(matrix.weight))

    kernels.linear = linear
    replay_of(model, kernels, few_rows, 1)
    assert len(calls) == products * model.config.num_layers and fused_step.linear is fused_triton.linear


@pytest.mark.needs_triton
def test_a_version_has_its_edits_and_a_text_that_is_not_there_is_refused(tmp_path):
    plain, narrow = (version_of(VERSIONS[name].edits, tmp_path) for name in ("fused", "16 columns a program"))
    assert plain.linear_shape(1, 2304, 768) == fused_triton.linear_shape(1, 2304, 768)
    assert narrow.linear_shape(1, 2304, 768)["OUT"] == 16
    with pytest.raises(ValueError, match=r"edits must replace what is in roseinfer\.kernels\.fused_triton, got 'x!'"):
        version_of({"x!": "y"}, tmp_path)
