"""The kernels compile for GPUs that are not here, and fit their registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product

import pytest

from roseinfer.kernels import aot, triton_mode

pytestmark = [pytest.mark.slow, pytest.mark.needs_triton]
SHAPE = ("dtype", "num_kv_heads", "group", "head_dim", "block_size")
ARCHITECTURES, DTYPES = ("sm_80", "sm_90"), ("fp16", "bf16")
TAKEN = {"registers", "stack_bytes", "shared_bytes"}


FEW = """
import sys
from roseinfer.cli.main import main
from roseinfer.kernels import aot
aot.SHAPES, aot.FLAT_SHAPES, aot.PRODUCTS = aot.SHAPES[:1], aot.FLAT_SHAPES[:1], aot.PRODUCTS[:1]
aot.BATCHES = {"decode": aot.BATCHES["decode"]}
sys.exit(main())
"""
AT_NIGHT = pytest.param("all", marks=pytest.mark.nightly)


@pytest.fixture(scope="module", params=["few", AT_NIGHT])
def compiled(request, tmp_path_factory) -> dict[str, dict]:
    """The content of the files that one run of the command writes on this machine, by module."""
    folder = tmp_path_factory.mktemp("aot")
    environ, program = os.environ, ["-m", "roseinfer"]
    if request.param == "few":  # in the process that the command would start
        environ, program = environ | {triton_mode.VARIABLE: "compile"}, ["-c", FEW]
    command = [sys.executable, *program, "aot", "--out", folder]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


@pytest.mark.parametrize("compiled", [AT_NIGHT], indirect=True)
def test_every_shape_compiles_for_both_architectures(compiled):
    kept = {module: json.loads(path.read_text(encoding="utf-8"))["rows"] for module, path in aot.KEPT.items()}
    assert {module: len(file["rows"]) for module, file in compiled.items()} == {name: len(kept[name]) for name in kept}
    found = [(row["arch"], *(row[name] for name in SHAPE)) for row in compiled["s07_triton_paged"]["rows"]]
    assert found == [(f"sm_{arch}", *shape) for arch in (80, 90) for shape in aot.SHAPES]
    found = {(row["kernel"], row["arch"], *(row[name] for name in SHAPE)) for row in compiled["paged_triton"]["rows"]}
    for arch, shape in product(ARCHITECTURES, aot.FLAT_SHAPES):
        assert {(f"attend, {batch}", arch, *shape) for batch in aot.BATCHES} <= found
    assert {kernel for kernel, *_ in found} == {f"attend, {batch}" for batch in aot.BATCHES}
    rows = compiled["fused_triton"]["rows"]
    found = [(row["arch"], row["dtype"], row["num_out"], row["width"], row["norm"], row["then"]) for row in rows]
    assert found == [(arch, dtype, *of) for arch, dtype, of in product(ARCHITECTURES, DTYPES, aot.PRODUCTS)]


@pytest.mark.parametrize(("module", "kib"), [("s07_triton_paged", 48), ("paged_triton", 99), ("fused_triton", 99)])
def test_nothing_spills_and_shared_memory_suffices(compiled, module, kib):
    """48 KiB is what any GPU gives; 99 what every one since Ampere does, laptops included, to those who ask."""
    for row in compiled[module]["rows"]:
        assert row["stack_bytes"] == 0, row
        assert 0 < row["registers"] <= 255 and row["shared_bytes"] <= kib * 1024, row


@pytest.mark.parametrize("module", aot.KEPT)
def test_the_kept_figures_are_of_this_kernel(compiled, module):
    """Registers depend on Triton's version; with the version that they were kept from, they are the same."""
    kept = json.loads(aot.KEPT[module].read_text(encoding="utf-8"))
    rows = compiled[module]["rows"]
    expected, found = (without_resources(rows) for rows in (kept["rows"], rows))
    assert found == [row for row in expected if row in found] and rows
    if kept["triton"] == compiled[module]["triton"]:
        assert all(row in kept["rows"] for row in rows)


def without_resources(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in TAKEN} for row in rows]
