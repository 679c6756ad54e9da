"""Folders of files that are no Python: those of the package, and those of the clone around it."""

from __future__ import annotations

from pathlib import Path

PACKAGED = Path(__file__).resolve().parent / "data"  # installed with the engine
TINY = PACKAGED / "tiny-gpt2"  # the bundled model
TOPICS = PACKAGED / "python-3.11-topics.txt"  # the language reference, as pydoc has it
GPUS, LINKS = PACKAGED / "gpus.json", PACKAGED / "links.json"  # data sheets

ROOT = PACKAGED.parents[1]
DATA = ROOT / "data"  # recorded runs and the posts' tables: in a clone only
FIRST_LESSON = ROOT / "notebooks" / "00_start_here.ipynb"


def has_course() -> bool:
    """Whether this is a clone, and not an engine that pip installed alone."""
    return FIRST_LESSON.is_file()
