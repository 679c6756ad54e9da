"""Published stages do not change: file, tokens and op counts are recomputed and compared with FROZEN.toml."""

from __future__ import annotations

import ast
import sys

import pytest
from tiers import at_night

from roseinfer.paths import ROOT
from stages import LADDER
from tools import freeze

RECORD = freeze.frozen()
NAMES = [cls.name for cls in LADDER]


# Their steps take seconds: in Triton's interpreter, and in two processes.
AT_NIGHT = ("s07", "s21", "s23")


@pytest.mark.parametrize("stage", LADDER, ids=lambda cls: cls.name)
def test_a_stages_file_is_what_it_was_when_it_was_published(stage):
    assert stage.name in RECORD, f'{stage.name} is not frozen: python -m tools.freeze {stage.name} --reason "..."'
    entry = RECORD[stage.name]
    assert freeze.sha256(freeze.source_file(stage)) == entry["sha256"], (
        f"{stage.name} changed: undo it, or freeze it again with a reason"
    )
    assert entry["changes"][-1]["sha256"] == entry["sha256"], "the last entry of its changes names another file"
    assert all(change["reason"].strip() and change["date"] for change in entry["changes"])


@pytest.mark.slow
@pytest.mark.parametrize("stage", at_night(LADDER, AT_NIGHT), ids=lambda cls: cls.name)
def test_a_stage_computes_what_it_did_when_it_was_published(stage):
    entry = RECORD[stage.name]
    assert freeze.facts(stage) == {key: entry[key] for key in ("sha256", "tokens", "ops")}, (
        f"{stage.name} or the library under it changed: undo it, or freeze it again with a reason"
    )


BASES = {"s21_tensor_parallel": "s10_one_table", "s23_few_launches": "s13_graphs"}


def test_the_tokens_were_frozen_on_the_model_that_is_bundled():
    assert RECORD["model"]["sha256"] == freeze.sha256(freeze.WEIGHTS)


def test_nothing_else_is_frozen_and_all_stages_agree():
    assert set(RECORD) == {"model", *NAMES}
    assert all(RECORD[name]["tokens"] == RECORD[NAMES[0]]["tokens"] for name in NAMES)


@pytest.mark.parametrize("position", range(len(LADDER)), ids=NAMES)
def test_a_stage_imports_the_library_and_one_stage_before_it_at_most(position):
    """So that a reader finds any idea in two hops. It is the predecessor, unless the header names another one."""
    tree = ast.parse(freeze.source_file(LADDER[position]).read_text(encoding="utf-8"))
    library = {*sys.stdlib_module_names, "torch", "numba", "roseinfer"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = BASES.get(NAMES[position], NAMES[position - 1])
            allowed = [base] if node.level else library
            assert (node.module or "").split(".")[0] in allowed, f"imports {node.module}"


def test_the_library_never_imports_stages_or_the_course():
    for path in (ROOT / "roseinfer").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(module.split(".")[0] in ("stages", "course") for module in modules), path


def test_reasons_survive_the_toml_writer():
    reason = 'a "quoted" \\ reason\nin two lines'
    entry = {"sha256": "0", "tokens": [[1, 2], []], "ops": {"cat": 3}}
    entry["changes"] = [{"date": "2026-01-31", "sha256": "0", "reason": reason}]
    text = freeze._to_toml({"model": {"sha256": "1"}, NAMES[0]: entry})
    parsed = freeze.tomllib.loads(text)
    assert parsed[NAMES[0]]["changes"][0]["reason"] == reason
    assert parsed[NAMES[0]]["tokens"] == [[1, 2], []] and parsed[NAMES[0]]["ops"] == {"cat": 3}
