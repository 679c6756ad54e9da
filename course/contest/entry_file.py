"""EntryFile: a learner's file, read once, with a hash of all that it runs; and the class in it."""

from __future__ import annotations

import ast
import linecache
import sys
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from .entry import KINDS, NoEntry, kind_of, names_of_kinds

MODULE = "contest_entry"  # the name under which a file is executed


@dataclass(frozen=True)
class EntryFile:
    """path: as it was given. source: its text. beside: the other files of the package that it is the `__init__` of."""

    path: str
    source: str
    beside: str = ""

    @property
    def sha256(self) -> str:
        return sha256((self.source + self.beside).encode()).hexdigest()

    @property
    def last_class_line(self) -> int | None:
        """The line where its last class at the top level begins, which usually is the entry."""
        return max(
            (node.lineno for node in ast.parse(self.source).body if isinstance(node, ast.ClassDef)), default=None
        )


def read_entry(path: Path | str) -> EntryFile:
    """Read a file, and parse it without running it. Raises ValueError for one that is no Python file with a class."""
    path = Path(path)
    try:
        source = path.read_text(encoding="utf-8")
        others = sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else []
        beside = "".join(other.read_text(encoding="utf-8") for other in others if other != path)
    except FileNotFoundError:
        raise ValueError(f"file {path}: there is no such file") from None
    except OSError as error:
        raise ValueError(f"file {path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError:
        raise ValueError(f"file {path}: must be Python source in UTF-8") from None
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ValueError(f"file {path}{line}: is no Python ({getattr(error, 'msg', error)})") from None
    if not any(isinstance(node, ast.ClassDef) for node in ast.walk(tree)):
        raise ValueError(f"file {path}: has no class; an entry is a class derived from {names_of_kinds()}")
    return EntryFile(str(path), source, beside)


def class_in(file: EntryFile) -> type:
    """Execute the file and return its entry. Raises NoEntry unless it defines exactly one, and the file's errors."""
    module = ModuleType(MODULE)
    module.__file__ = file.path
    sys.modules[MODULE] = module
    linecache.cache[file.path] = len(file.source), None, file.source.splitlines(keepends=True), file.path
    exec(compile(file.source, file.path, "exec"), module.__dict__)
    every = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))  # under any of its names
    own = [cls for cls in every if cls.__module__ == MODULE]
    entries = [cls for cls in own if issubclass(cls, tuple(KINDS))]
    entries = [cls for cls in entries if not any(other is not cls and issubclass(other, cls) for other in entries)]
    if not entries:
        kind_of(own[0]) if own else None
        raise NoEntry(f"has no class of its own at the top level; derive one from {names_of_kinds()}")
    if len(entries) > 1:
        names = ", ".join(cls.__name__ for cls in entries)
        raise NoEntry(f"has {len(entries)} entries, {names}: keep one in each file")
    return entries[0]
