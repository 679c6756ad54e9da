"""The house does not grow unseen: SIZES.toml has the most lines of each room, and a rise has its reason there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from roseinfer.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIZES = tomllib.loads((ROOT / "SIZES.toml").read_text(encoding="utf-8"))
SLACK = 100  # lines that a room may lie below its figure before the figure has to follow


def rooms() -> dict[str, list[Path]]:
    """The Python files of each room: a folder of a package, or the files that lie in the package itself."""
    found: dict[str, list[Path]] = {}
    for package in ("roseinfer", "course"):
        for path in sorted((ROOT / package).rglob("*.py")):
            inside = path.relative_to(ROOT).parts
            found.setdefault("/".join(inside[:2]) if len(inside) > 2 else package, []).append(path)
    return found | {name: sorted((ROOT / name).rglob("*.py")) for name in ("stages", "tools", "tests")}


LINES = {
    room: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths) for room, paths in rooms().items()
}


def allowed(room: str) -> int:
    return int(SIZES["lines"][room] + sum(rise["lines"] for rise in SIZES.get("rises", []) if rise["room"] == room))


def test_each_room_has_a_figure():
    assert SIZES["lines"].keys() == LINES.keys()


@pytest.mark.parametrize("room", LINES)
def test_a_room_grows_by_its_reasons_alone(room):
    assert LINES[room] <= allowed(room), "make it smaller, or add a rise with its reason to SIZES.toml"


@pytest.mark.parametrize("room", LINES)
def test_a_room_that_shrank_keeps_no_room_to_grow(room):
    assert LINES[room] > allowed(room) - SLACK, f"it has {LINES[room]:,} lines now: say so in SIZES.toml"


def test_each_rise_says_when_and_why():
    for rise in SIZES.get("rises", []):
        assert rise.keys() == {"room", "lines", "date", "reason"} and rise["room"] in LINES
        assert rise["lines"] > 0 and len(rise["reason"].split()) > 5, rise
