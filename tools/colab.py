"""python -m tools.colab FOLDER OWNER/NAME: copies of the lessons that begin with the set-up cell that Colab needs.

Colab opens one notebook on a machine without the course's files. The workflow of the book pushes these copies to a
branch of their own, to which the book's buttons lead.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tools.book.launch import check_repository
from tools.shape import lessons

SETUP = """# For Colab: fetches the course and what it needs, in a few minutes. If it asks for a restart, run it again.
!test -d roseinfer || git clone --quiet --depth 1 https://github.com/{repository} roseinfer
%run roseinfer/teaching/colab_setup.py"""


def for_colab(nb: NotebookNode, repository: str) -> NotebookNode:
    """Copy the notebook with the set-up cell above all others."""
    cell = nbformat.v4.new_code_cell(SETUP.format(repository=repository), id="colab-setup")
    return nbformat.from_dict({**nb, "cells": [cell, *nb.cells]})


def write_all(folder: Path, repository: str) -> None:
    """Write the copies to folder/notebooks. Raises ValueError for a repository that is not OWNER/NAME."""
    check_repository(repository)
    (folder / "notebooks").mkdir(parents=True, exist_ok=True)
    for path in lessons():
        copy = for_colab(nbformat.read(path, as_version=4), repository)
        nbformat.write(copy, folder / "notebooks" / path.name)


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), sys.argv[2])
