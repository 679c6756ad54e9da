"""python -m tools.book [--repository OWNER/NAME] [FOLDER]: build the book, in build/book when no folder is named."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roseinfer.paths import ROOT

if sys.version_info < (3, 11):
    sys.exit("error: the book is built by Sphinx, which needs Python 3.11 or newer")

from tools.book.build import build

parser = argparse.ArgumentParser(prog="python -m tools.book", description="Build the book.")
parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "book")
parser.add_argument("--repository", metavar="OWNER/NAME", help="on GitHub: lessons get buttons that open them online")
arguments = parser.parse_args()
try:
    build(arguments.folder.resolve(), repository=arguments.repository or None)
except ValueError as error:
    sys.exit(f"error: {error}")
print(f"{arguments.folder}/index.html")
