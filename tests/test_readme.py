"""The README's programs run, and say the same."""

from __future__ import annotations

import re

import pytest

from roseinfer.models.hf import FAMILIES
from roseinfer.models.shapes import RANDOM_SHAPES
from roseinfer.paths import ROOT

PROGRAMS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What each program prints on a machine without a GPU."""
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: False)
        for program in PROGRAMS:
            lines: list[str] = []
            exec(program, {"print": lambda *texts, lines=lines: lines.append(" ".join(texts))})
            printed.append("\n".join(lines))
    return printed


def test_the_engine_and_a_stage_continue_alike(texts):
    engine, stage = texts
    assert engine.startswith(f"{stage}\n") and stage.startswith("Return a new ")
    assert len(engine) > len(stage) + len("\nThe optional argument")


def test_the_table_of_models_has_every_family_and_shapes_that_exist():
    rows = re.findall(
        r"^\| `(\w+)` \| .* \| `random:(\S+)` \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert [family for family, _ in rows] == list(FAMILIES)
    assert all(RANDOM_SHAPES[shape].architecture == family for family, shape in rows)
