"""A recorded notebook as a page of the book: what only a kernel can do is left out, solutions are folded in."""

from __future__ import annotations

import copy
import json
from html import escape
from typing import Any

import nbformat
from nbformat import NotebookNode

from course.display.board import VEGA
from roseinfer.display.chart import VEGA_LITE
from tools.book.launch import launch_buttons
from tools.book.links import rewrite_links

# A verdict on an answer, the learner's own guesses and progress: a page has no reader's state.
LEFT_OUT = ("teach.check(", "teach.predictions(", "teach.progress(")  # anywhere in a cell
# Calls whose output says all: a task, a verdict, a sentence.
HIDDEN = ("teach.exercise(", "teach.reveal(", "teach.say")
NOTE = """:::{{note}}
A page from the notebook `{path}`. Its numbers were recorded on {machine}. In JupyterLab every cell runs, the exercises
are judged as you write them, and the numbers are those of your machine.
:::"""


def to_page(
    nb: NotebookNode, solutions: dict[str, str], path: str, pages: set[str], repository: str | None = None
) -> NotebookNode:
    """Copy a notebook for Sphinx, with its solutions.

    path: of the notebook in the repository. pages: paths that the book has, to which links may lead. solutions:
    exercise id -> source. repository: where buttons lead to, OWNER/NAME; None: no buttons.
    """
    nb = copy.deepcopy(nb)
    cells: list[NotebookNode] = []
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = rewrite_links(cell.source, path, pages)
        elif any(call in cell.source for call in LEFT_OUT):
            continue
        else:
            if cell.source.startswith(HIDDEN):
                cell.metadata.setdefault("tags", []).append("remove-input")
            if cell.metadata.get("jupyter", {}).get("outputs_hidden"):  # it answers a question: guess first
                cell.metadata.setdefault("tags", []).append("hide-output")
            cell.outputs = [_output(output) for output in cell.outputs if not _needs_a_kernel(output)]
        cells.append(cell)
        if answer := solutions.get(cell.metadata.get("exercise", "")):
            cells.append(_markdown(_fold("Solution", f"```python\n{answer.strip()}\n```")))
    first = cells[0]
    first.source += "\n\n" + NOTE.format(path=path, machine=nb.metadata["recorded_on"])
    if repository:
        first.source += "\n\n" + launch_buttons(repository, path)
    nb.cells = cells
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nb


def _markdown(source: str) -> NotebookNode:
    return nbformat.v4.new_markdown_cell(source)


def _fold(title: str, text: str) -> str:
    return f"::::{{dropdown}} {title}\n{text}\n::::"


def _needs_a_kernel(output: NotebookNode) -> bool:
    """Tell whether the output is a widget, of which a recording keeps only the text."""
    return bool(output.output_type == "display_data" and set(output.data) == {"text/plain"})


def _output(output: NotebookNode) -> NotebookNode:
    data = output.get("data", {})
    if is_chart(data):
        output.data = nbformat.from_dict({"text/html": chart_html(data), "text/plain": data["text/plain"]})
    return output


def is_chart(data: dict[str, Any]) -> bool:
    return VEGA in data or VEGA_LITE in data


def chart_html(data: dict[str, Any]) -> str:
    """Return a spec that book.js draws; the recorded picture stays for readers without JavaScript.

    The spec has no `$schema`: that names the version of JupyterLab's Vega, and the book's newer Vega would warn.
    """
    kind, mode = (VEGA, "vega") if VEGA in data else (VEGA_LITE, "vega-lite")
    spec = {key: value for key, value in data[kind].items() if key != "$schema"}
    text = json.dumps(spec, separators=(",", ":")).replace("</", "<\\/")
    still = f'<img alt="{escape(data["text/plain"])}" src="data:image/png;base64,{data["image/png"].strip()}">'
    drawn = f'<script type="application/json">{text}</script><noscript>{still}</noscript>'
    return f'<div class="chart" data-mode="{mode}">{drawn}</div>'
