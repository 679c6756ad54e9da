"""my_pieces: which pieces of the learner's own engine are kept, and which are still the course's."""

from __future__ import annotations

from course.own_engine import PIECES, folder, own_pieces
from roseinfer.display.table import Table

from .rows_table import table


def my_pieces() -> Table:
    """List the five pieces of your own engine: the exercise that keeps each, whose it is now, and its lines."""
    files = own_pieces()
    rows = [
        {
            "exercise": piece.exercise_id,
            "piece": piece.title,
            "whose": "yours" if piece.name in files else "the course's",
            "lines": len(files[piece.name].read_text("utf-8").splitlines()) if piece.name in files else "",
        }
        for piece in PIECES
    ]
    live = ["whose", "lines"]
    return table(rows, live, "Your own engine", f"Kept in {folder()}." if files else "")


def my_entry() -> str | None:
    """Return the file that enters your own engine for a contest, None while it has no piece."""
    files = own_pieces()
    return str(next(iter(files.values())).with_name("__init__.py")) if files else None
