"""python -m tools.record notebooks/*.ipynb: run notebooks again and record their outputs in place.

A notebook in which a cell fails is left as it was, and so is one whose races say that the machine was busy. Run times,
widget state and views, stderr and other things that change from run to run are not recorded, so that a diff of a
notebook shows what changed in it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

import nbformat
import torch
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from roseinfer.bench.provenance import describe_host
from tools.notebooks import kernel_env, notebook_client
from tools.pictures import copy_pictures
from tools.quiet import busy_signs

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {"name": "python", "file_extension": ".py", "mimetype": "text/x-python", "pygments_lexer": "ipython3"}
VOLATILE = ("execution", "ExecuteTime", "collapsed", "scrolled", "trusted", "vscode", "pycharm")


class RecordingFailed(Exception):
    """A notebook was not recorded. The message names the notebook, the cell and what happened."""


def record(path: Path) -> list[str]:
    """Run a notebook, write it back, return notes for its author. If it raises RecordingFailed, path is as it was."""
    nb = read(path)
    client = notebook_client(nb, path.parent)
    last: list[int] = []
    client.on_cell_execute = lambda cell, cell_index: last.append(cell_index)
    try:
        client.execute(env=kernel_env())
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise RecordingFailed(_failure(path, nb, last, error)) from error
    if signs := busy_signs(nb):
        raise RecordingFailed(f"{path.name}: this machine was busy, nothing recorded: {'; '.join(signs)}")
    notes = [f"Cell {n} writes to stderr (not recorded)" for n, cell in enumerate(code_cells(nb)) if _stderr(cell)]
    strip(nb)
    nb.metadata["recorded_on"] = this_machine()
    nbformat.write(nb, path)
    copy_pictures(path.stem, nb)
    return notes


def read(path: Path) -> NotebookNode:
    """Read a notebook. Raises RecordingFailed if it is no notebook, or one without cell ids."""
    try:
        nb = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    except (OSError, ValueError, AttributeError) as error:
        raise RecordingFailed(f"{path.name}: cannot be read ({error})") from error
    if (nb.nbformat, nb.nbformat_minor) < (4, 5):
        version = f"{nb.nbformat}.{nb.nbformat_minor}"
        raise RecordingFailed(f"{path.name}: format {version} has no cell ids; save it in JupyterLab once (4.5)")
    return nb


def this_machine() -> str:
    """Name the machine whose times are recorded here, for readers who have not run the notebook."""
    host = describe_host(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    return f"{host['device']}, torch {host['versions']['torch']}"


def code_cells(nb: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def strip(nb: NotebookNode) -> None:
    """Drop what differs from run to run or from one editor to another. Ids, tags and other metadata stay."""
    nb.metadata = nbformat.from_dict({"kernelspec": KERNELSPEC, "language_info": LANGUAGE})
    for cell in nb.cells:
        for key in VOLATILE:
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                # Without the widget's state a view only says that its model is not found; its text remains.
                output.get("data", {}).pop(WIDGET_VIEW, None)


def _failure(path: Path, nb: NotebookNode, last: list[int], error: Exception) -> str:
    if not last:
        return f"{path.name}: the kernel did not start: {error}"
    # Numbered as pytest --nbval does: code cells alone, from 0.
    number = sum(cell.cell_type == "code" for cell in nb.cells[: last[-1]])
    what = f"{error.ename}: {error.evalue}" if isinstance(error, CellExecutionError) else str(error)
    first_line = nb.cells[last[-1]].source.strip().splitlines()[0]
    return f"{path.name}: Cell {number} ({first_line}) failed, nothing recorded: {what}"


def _stderr(cell: NotebookNode) -> bool:
    return any(output.get("name") == "stderr" for output in cell.outputs)


def main(argv: list[str] | None = None) -> int:
    """Record the notebooks. The exit status is 1 if one failed; the others are recorded all the same."""
    parser = argparse.ArgumentParser(prog="python -m tools.record", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    failed = 0
    for path in parser.parse_args(argv).notebooks:
        start = perf_counter()
        try:
            notes = record(path)
        except RecordingFailed as error:
            failed += 1
            print(f"FAILED {error}", file=sys.stderr, flush=True)
            continue
        print(f"{path.name}: recorded in {perf_counter() - start:.0f} s", flush=True)
        for note in notes:
            print(f"  note: {note}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
