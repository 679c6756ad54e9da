"""The README's programs run, and say the same."""

from __future__ import annotations

import re

import nbformat
import pytest

from roseinfer.models.hf import FAMILIES
from roseinfer.models.shapes import RANDOM_SHAPES
from roseinfer.paths import ROOT
from tools.pictures import PICTURES, recorded_pictures
from tools.shape import lessons

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


def test_pictures_of_lessons_are_what_the_lessons_recorded():
    recorded = dict(
        picture for path in lessons() for picture in recorded_pictures(path.stem, nbformat.read(path, as_version=4))
    )
    assert recorded.keys() == PICTURES.keys()
    other = [name for name, picture in recorded.items() if (ROOT / "docs" / name).read_bytes() != picture]
    assert other == [], "record their notebooks with tools.record, which copies the pictures"


def test_each_picture_in_docs_is_on_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"!\[[^]]*\]\(\S*?([\w.]+)\)", page.read_text("utf-8"))}
    assert {path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg")} <= shown
