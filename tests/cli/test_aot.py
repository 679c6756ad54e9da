"""The kernels compile for GPUs that are not here, and fit their registers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from fresh_python import printed_by

from roseinfer.kernels import aot

TAKEN = {"registers", "stack_bytes", "shared_bytes"}
# Bytes of shared memory: 48 KiB is what any GPU gives; 99 what every one since Ampere does, laptops included, to those
# who ask.
MOST_SHARED = {"s07_triton_paged": 48 * 1024, "paged_triton": 99 * 1024, "fused_triton": 99 * 1024}
every_module = pytest.mark.parametrize("module", aot.KEPT)

# All programs in words, and what some of them take: of paged_triton every shape, and
# every launch of a step that mixes decodes with chunks.
SOME = """
import json, triton
from roseinfer.cli.commands.aot import programs_of
from roseinfer.kernels.aot import ARCHITECTURES, rows

found = {}
for module, step in {"s07_triton_paged": 4, "paged_triton": 11, "fused_triton": 5}.items():
    programs = list(programs_of(module))
    told = [{"arch": f"sm_{arch}", **p.about, "warps": p.warps} for arch in ARCHITECTURES for p in programs]
    found[module] = {"triton": triton.__version__, "told": told, "rows": list(rows(programs[::step]))}
print(json.dumps(found))
"""


def kept(module: str) -> dict[str, Any]:
    return json.loads(aot.KEPT[module].read_text(encoding="utf-8"))


def in_words(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in TAKEN} for row in rows]


def assert_fits(module: str, rows: list[dict]) -> None:
    for row in rows:
        assert row["stack_bytes"] == 0, row
        assert 0 < row["registers"] <= 255 and row["shared_bytes"] <= MOST_SHARED[module], row


@every_module
def test_nothing_that_is_kept_spills_and_shared_memory_suffices(module):
    assert_fits(module, kept(module)["rows"])


@pytest.fixture(scope="module")
def some() -> dict[str, dict]:
    return json.loads(printed_by(SOME, ROSEINFER_TRITON="compile"))


@pytest.mark.slow
@pytest.mark.needs_triton
@every_module
def test_the_kept_figures_are_of_these_programs_and_of_these_kernels(some, module):
    """Registers depend on Triton's version; with the version that they were kept from, they are the same."""
    found, expected = some[module], kept(module)
    assert found["told"] == in_words(expected["rows"])
    assert_fits(module, found["rows"])
    of = {json.dumps(words): row for words, row in zip(found["told"], expected["rows"], strict=True)}
    if found["triton"] == expected["triton"]:
        assert found["rows"] == [of[json.dumps(words)] for words in in_words(found["rows"])]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[str, dict]:
    """The content of the files that one run of the command writes on this machine, by module."""
    folder = tmp_path_factory.mktemp("aot")
    done = subprocess.run([sys.executable, "-m", "roseinfer", "aot", "--out", folder], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.iterdir()}


@pytest.mark.nightly  # the test above compiles a fifth of them
@pytest.mark.slow
@pytest.mark.needs_triton
@every_module
def test_every_shape_compiles_as_it_did(compiled, module):
    assert compiled.keys() == aot.KEPT.keys()
    found, expected = compiled[module], kept(module)
    assert in_words(found["rows"]) == in_words(expected["rows"])
    assert_fits(module, found["rows"])
    if found["triton"] == expected["triton"]:
        assert found == expected
