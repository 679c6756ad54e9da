"""python -m tools.book [FOLDER]: build the book, in build/book when no folder is named."""

from __future__ import annotations

import sys
from pathlib import Path

from roseinfer.paths import ROOT

if sys.version_info < (3, 11):
    sys.exit("error: the book is built by Sphinx, which needs Python 3.11 or newer")

from tools.book.build import build

output = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "book"
build(output.resolve())
print(f"{output}/index.html")
