"""The README is one screen, and what it and the pages promise is there: programs, tables, commands, pictures."""

from __future__ import annotations

import re
from argparse import ArgumentParser, _SubParsersAction

import nbformat
import pytest

from roseinfer.cli.main import parser
from roseinfer.models.hf import FAMILIES
from roseinfer.models.shapes import RANDOM_SHAPES
from roseinfer.paths import ROOT
from tools.pictures import PICTURES, recorded_pictures
from tools.shape import lessons

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "teaching" / "README.md", *(ROOT / "docs").rglob("*.md")]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README + ENGINE, re.M | re.S)
MOST_WORDS = 900


def test_the_readme_is_one_screen_of_words():
    assert len(README.split()) <= MOST_WORDS, "the rest is for pages of docs/"


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


@pytest.mark.slow
def test_the_engine_answers_and_a_stage_continues_a_text(texts):
    engine, stage = texts
    assert engine.startswith("The capital of France is Paris.\n1. ")
    assert stage.startswith("Return a new ")


def test_the_table_of_models_has_every_family_and_shapes_that_exist():
    rows = re.findall(r"^\| `(\w+)` \| .* \| `random:(\S+)` \|$", ENGINE, re.M)
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
    shown = {name for page in PAGES for name in re.findall(r"!\[[^]]*\]\(\S*?([\w.]+)\)", page.read_text("utf-8"))}
    assert {path.name for path in (ROOT / "docs").iterdir() if path.suffix in (".png", ".svg")} <= shown


# Prose has the name at the beginning of a line, Python before "import".
CALL = re.compile(r"[`/ ]roseinfer(?! import)(?P<words>(?: [a-z][a-z-]*)+)(?P<rest>[^`|\n]*)")


def all_commands(own: ArgumentParser, name: str = "") -> dict[str, ArgumentParser]:
    """Each command of the terminal, such as "bench offline", with its parser."""
    found = {name: own}
    for action in own._actions:
        if isinstance(action, _SubParsersAction):
            for word, inner in action.choices.items():
                found |= all_commands(inner, f"{name} {word}".strip())
    return found


def test_each_command_on_a_page_exists_and_takes_the_flags_that_stand_after_it():
    known, unknown, number = all_commands(parser()), [], 0
    groups = {name.rpartition(" ")[0] for name in known}  # such as "bench", which needs a second word
    for page in PAGES:
        for call in CALL.finditer(page.read_text(encoding="utf-8").replace("\\\n", " ")):
            words = call["words"].split()
            name = next((name for n in (2, 1) if (name := " ".join(words[:n])) in known), None)
            if name is None or name in groups:
                unknown.append((page.name, call["words"]))
                continue
            flags = re.findall(r"(?<!\S)--[a-z][a-z0-9-]*", call["rest"])
            number += len(flags)
            unknown += [(page.name, name, flag) for flag in flags if flag not in known[name]._option_string_actions]
    assert unknown == [] and number > 50


def test_each_make_target_of_a_page_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    called = {
        target
        for page in PAGES
        for target in re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"), re.M)
    }
    assert called <= targets and len(called) > 10
