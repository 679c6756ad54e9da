"""The folder my_engine/: a file for each piece that a learner has written, and the engine that they make."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
from pathlib import Path
from types import ModuleType

from roseinfer.paths import ROOT
from roseinfer.stage import Stage

from .pieces import PIECES, Piece, assembled

PLACE = "ROSEINFER_MY_ENGINE"
OFF = "off"
INIT = '''\
"""The engine that I wrote in the course. A piece that has no file here is the course's."""

from pathlib import Path

from course.own_engine import engine_in


class MyEngine(engine_in(Path(__file__).parent)):
    name = "my_engine"
'''


def folder() -> Path | None:
    """Return the learner's folder: $ROSEINFER_MY_ENGINE, or my_engine/ in the clone. None for "off"."""
    chosen = os.environ.get(PLACE)
    return None if chosen == OFF else Path(chosen or ROOT / "my_engine").expanduser()


def own_pieces() -> dict[str, Path]:
    """Map the names of the pieces that the learner has written to their files."""
    place = folder()
    return files_in(place) if place else {}


def my_engine() -> type[Stage] | None:
    """Return the engine of the learner's folder, None while it has no piece. Raises ValueError as engine_in does."""
    place = folder()
    return engine_in(place) if place and files_in(place) else None


def engine_in(place: Path) -> type[Stage]:
    """Return an engine of the pieces in a folder, and of the course's where there is none.

    Raises ValueError for a file that cannot be run, or that has no such piece.
    """
    files = files_in(place)
    pieces = [piece for piece in PIECES if piece.name in files]
    return assembled({each.name: load(each, files[each.name].read_text("utf-8"), files[each.name]) for each in pieces})


def files_in(place: Path) -> dict[str, Path]:
    """Map the names of the pieces in a folder to their files."""
    paths = {piece.name: place / f"{piece.name}.py" for piece in PIECES}
    return {name: path for name, path in paths.items() if path.is_file()}


def load(piece: Piece, source: str, filename: Path | str) -> type[Stage]:
    """Run the source of a piece as a module, and return the last class in it that is derived from the course's stage.

    filename: where it comes from, for errors. Raises ValueError for a source that fails, or has no such class.
    """
    module = ModuleType(f"my_engine.{piece.name}")
    sys.modules[module.__name__] = module
    linecache.cache[str(filename)] = len(source), None, source.splitlines(keepends=True), str(filename)
    try:
        exec(compile(source, str(filename), "exec"), module.__dict__)
    except Exception as error:
        raise ValueError(f"{filename} cannot be run as a file of its own ({type(error).__name__}: {error})") from error
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
    found = [cls for cls in classes if issubclass(cls, piece.course)]
    if not found:
        raise ValueError(f"{filename} must have a class derived from {piece.course.__name__}, {piece.title}")
    return found[-1]


def source_of(answer: type[Stage]) -> str:
    """Return the text of the cell, or of the file, that defines a class. Raises ValueError where it is not known."""
    for value in vars(answer).values():
        function = inspect.unwrap(getattr(value, "__func__", value))
        if code := getattr(function, "__code__", None):
            source = "".join(linecache.getlines(code.co_filename))
            if f"class {answer.__name__}" in source:
                return source
    raise ValueError(f"the source of {answer.__name__} is not known: define it in a cell of the notebook")


def keep(piece: Piece, source: str, replace: bool = False) -> str:
    """Write a piece to the learner's folder, and return a sentence that says where it lies.

    replace: overwrite another answer that is kept there; without it, that one stays.
    """
    place = folder()
    if place is None:
        return f"not kept: {PLACE}={OFF}"
    path = place / f"{piece.name}.py"
    package = place / "__init__.py"
    try:
        if path.is_file() and not replace and path.read_text(encoding="utf-8", errors="replace") != source:
            return f"`{path}` has another answer, which stays; `replace=True` keeps this one in its place"
        place.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        if not package.is_file():
            package.write_text(INIT, encoding="utf-8")
    except OSError as error:
        return f"not kept: {error}. Set {PLACE} to a folder in which you may write"
    return f"kept in `{path}`: {piece.title} of your own engine"
