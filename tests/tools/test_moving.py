"""Pictures that play by themselves: each frame shows what the Board shows, and the last one stays."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from course.display.board import Board, Cell, Frame, Panel
from tools.moving import HOLD_MS, SVG, moving_picture

FRAME_MS = 100
LETTERS = ["a", "a & b", "c < d", "a"]  # the first one comes back


@pytest.fixture
def board():
    frames = [
        Frame([Panel([Cell(0, 0, "stays"), Cell(1, 0, letter)])], f"frame {n}") for n, letter in enumerate(LETTERS)
    ]
    return Board(frames, "letters <exactly>", frame_ms=FRAME_MS)


def seen(picture: str, ms: float) -> list[str]:
    """Return the texts that a browser shows at a moment, from the groups' own key frames."""
    root = ElementTree.fromstring(picture)
    style = root.findtext(f"{{{SVG}}}style") or ""
    texts = []
    for group in root.iter(f"{{{SVG}}}g"):
        state = "visible"
        if named := re.fullmatch(r"animation-name: (k\d+); animation-duration: (\d+)ms", group.get("style", "")):
            [steps] = re.findall(rf"@keyframes {named[1]} {{(.*)}}", style)
            marks = re.findall(r"([\d.]+)% { visibility: (\w+) }", steps)
            state = [state for share, state in marks if float(share) / 100 * int(named[2]) <= ms][-1]
        if state == "visible":
            texts += [text.text or "" for text in group.iter(f"{{{SVG}}}text")]
    return texts


def test_each_frame_shows_the_texts_of_the_board(board):
    picture = moving_picture(board.spec)
    for number in range(len(LETTERS)):
        assert sorted(seen(picture, (number + 0.5) * FRAME_MS)) == sorted(board.texts(number))


def test_the_last_frame_stays_and_is_the_one_without_motion(board):
    picture = moving_picture(board.spec)
    last = board.texts(len(LETTERS) - 1)
    assert sorted(seen(picture, len(LETTERS) * FRAME_MS + HOLD_MS - 1)) == sorted(last)
    groups = ElementTree.fromstring(picture).iter(f"{{{SVG}}}g")
    still = [text.text for group in groups if group.get("class") == "last" for text in group.iter(f"{{{SVG}}}text")]
    assert sorted(still) == sorted(last)


def test_a_spec_that_does_not_play_is_refused(board):
    with pytest.raises(ValueError, match="spec must be of a Board with several frames"):
        moving_picture(Board(board.frames[:1], "one frame").spec)
    with pytest.raises(ValueError, match="one choice"):
        moving_picture(Board({"a": board.frames, "b": board.frames}, "two choices").spec)
