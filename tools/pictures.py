"""Copies pictures of lessons to the README and docs: tools.record takes them from what the lessons recorded.

A chart is copied as it is; a Board, which plays in a notebook, becomes a picture that plays by itself.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator

from nbformat import NotebookNode

from course.display.board import VEGA
from roseinfer.paths import ROOT
from tools.moving import moving_picture

DOCS = ROOT / "docs"
# The picture in docs/: the notebook, and the call that draws it.
PICTURES = {
    "requests.png": ("00_start_here", "teach.recorded_requests("),
    "answer.svg": ("00_start_here", "teach.ask("),
    "race.svg": ("00_start_here", "teach.race_texts("),
    "lesson05.svg": ("05_block_table", "teach.walk_blocks("),
}


def copy_pictures(notebook: str, nb: NotebookNode) -> None:
    """Write the pages' pictures that a notebook has recorded. notebook: its name without .ipynb."""
    for name, picture in recorded_pictures(notebook, nb):
        (DOCS / name).write_bytes(picture)


def recorded_pictures(notebook: str, nb: NotebookNode) -> Iterator[tuple[str, bytes]]:
    """Find the pages' pictures in a notebook: the name of each, and its content."""
    for name, (drawn_in, call) in PICTURES.items():
        if drawn_in == notebook:
            cell = next(cell for cell in nb.cells if cell.cell_type == "code" and call in cell.source)
            for output in cell.outputs:
                data = output.get("data", {})
                if name.endswith(".svg") and VEGA in data:
                    yield name, moving_picture(data[VEGA]).encode()
                elif name.endswith(".png") and "image/png" in data:
                    yield name, b64decode(data["image/png"])
