"""The kernel compiles for GPUs that are not here, and fits their registers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from roseinfer.kernels import aot

pytestmark = pytest.mark.needs_triton
SHAPE = ("arch", "dtype", "num_kv_heads", "group", "head_dim", "block_size")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict:
    """What one run of the command finds, on this machine."""
    path = tmp_path_factory.mktemp("aot") / "rows.json"
    done = subprocess.run([sys.executable, "-m", "roseinfer", "aot", "--json", path], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_shape_compiles_for_both_architectures_and_nothing_spills(compiled):
    found = [tuple(row[name] for name in SHAPE) for row in compiled["rows"]]
    assert found == [(f"sm_{arch}", *shape) for arch in (80, 90) for shape in aot.SHAPES]
    for row in compiled["rows"]:
        assert row["stack_bytes"] == 0, row
        assert 0 < row["registers"] <= 255 and row["shared_bytes"] <= 48 * 1024, row


def test_the_kept_figures_are_of_this_kernel(compiled):
    """Registers depend on Triton's version; with the version that they were kept from, they are the same."""
    kept = json.loads(aot.KEPT.read_text(encoding="utf-8"))
    assert [{name: row[name] for name in (*SHAPE, "tile", "warps")} for row in kept["rows"]] == [
        {name: row[name] for name in (*SHAPE, "tile", "warps")} for row in compiled["rows"]
    ]
    if kept["triton"] == compiled["triton"]:
        assert kept == compiled
