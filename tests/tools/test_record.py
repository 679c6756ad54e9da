"""python -m tools.record: what a recorded notebook keeps, and what happens when a cell fails."""

from __future__ import annotations

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools.notebooks import plain_text
from tools.record import main


@pytest.fixture
def write(tmp_path):
    def write(name, *cells, **metadata):
        path = tmp_path / name
        nbformat.write(new_notebook(cells=list(cells), metadata=metadata), path)
        return path

    return write


@pytest.mark.slow
def test_outputs_are_recorded_and_volatile_things_are_not(write, capsys):
    path = write(
        "lesson.ipynb",
        new_markdown_cell("# A lesson"),
        new_code_cell("import sys, ipywidgets\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')", id="first"),
        new_code_cell(
            "6 * 7", execution_count=9, metadata={"tags": ["t"], "exercise": "01.2", "execution": {"iopub": "now"}}
        ),
        new_code_cell("ipywidgets.IntSlider(value=3)"),
        new_code_cell("1/0", metadata={"tags": ["nbval-skip"]}),
        new_code_cell("int('x')", metadata={"tags": ["raises-exception"]}),
        widgets={"state": {}},
        language_info={"name": "python", "version": "3.0"},
    )
    assert main([str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("lesson.ipynb: recorded in") and "Cell 0 writes to stderr" in out

    first_run = path.read_bytes()
    nb = nbformat.read(path, as_version=4)
    text, first, product, widget, skipped, raising = nb.cells
    assert [(o.name, o.text) for o in first.outputs] == [("stdout", "a\nc\n")]
    assert first.id == "first" and first.execution_count == 1
    assert plain_text(product) == ["42"]
    assert product.metadata == {"tags": ["t"], "exercise": "01.2"}
    assert plain_text(widget) == ["IntSlider(value=3)"] and list(widget.outputs[0].data) == ["text/plain"]
    assert skipped.outputs == [] and skipped.execution_count is None
    assert raising.outputs[0].ename == "ValueError"
    assert set(nb.metadata) == {"kernelspec", "language_info", "recorded_on"}
    assert "version" not in nb.metadata.language_info and f"torch {torch.__version__}" in nb.metadata.recorded_on

    assert main([str(path)]) == 0
    assert path.read_bytes().replace(b"ipykernel_", b"") == first_run.replace(b"ipykernel_", b"")


@pytest.mark.slow
def test_a_failing_cell_is_named_and_the_file_left_alone(write, capsys):
    path = write("bad.ipynb", new_markdown_cell("text"), new_code_cell("x = 1"), new_code_cell("# look\nx / 0"))
    before = path.read_bytes()
    assert main([str(path), str(path.with_name("absent.ipynb"))]) == 1
    err = capsys.readouterr().err
    assert "FAILED bad.ipynb: Cell 1 (# look) failed, nothing recorded: ZeroDivisionError: division by zero" in err
    assert "FAILED absent.ipynb: cannot be read" in err
    assert path.read_bytes() == before


def test_a_notebook_without_cell_ids_is_refused(tmp_path, capsys):
    path = tmp_path / "old.ipynb"
    path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 4}')
    assert main([str(path)]) == 1
    assert "format 4.4 has no cell ids" in capsys.readouterr().err
