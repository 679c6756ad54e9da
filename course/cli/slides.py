"""Write a file of slides a lesson, from the recorded notebooks; they show offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from roseinfer.cli.command import require_folder
from roseinfer.cli.output import require_suffix

EXAMPLES = ("roseinfer slides notebooks/*.ipynb",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("notebooks", nargs="+", type=Path, metavar="NOTEBOOK", help="a lesson, *.ipynb")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("build/slides"), help="where the files go")


def run(args: argparse.Namespace) -> None:
    for path in args.notebooks:
        require_suffix("NOTEBOOK", path, (".ipynb",))
        if not path.is_file():
            raise FileNotFoundError(f"NOTEBOOK {path}: there is no such file")
        require_notebook(path)
    require_folder("--out", args.out)
    from course.pages.slides import write_slides

    for path in args.notebooks:
        print(write_slides(path, args.out), flush=True)


def require_notebook(path: Path) -> None:
    """Check the notebook before anything is written. Raises ValueError."""
    import nbformat

    try:
        nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError) as error:
        raise ValueError(f"NOTEBOOK {path}: must be a notebook, and is no JSON of one") from error
