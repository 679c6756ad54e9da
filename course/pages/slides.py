"""One HTML file of slides a lesson, which shows offline: what `roseinfer slides` writes.

What becomes a slide follows from the notebook, so that its cells need no metadata:

- a heading of level 1 or 2 starts a slide; a deeper one, or prose, starts one below it;
- the first code cell after prose comes on a key press, below the prose: time to ask what it will show. The next one
  has a slide of its own. Code of more than 12 lines is folded;
- a cell without an output joins the slide before it;
- a prediction after another one, and a card that reveals or says something, join the slide before;
- left out: what sets a lesson up (before its first section), what a learner fills in and has judged, listings of code,
  and what is folded in the notebook (sections whose heading begins with Deeper).

A cell's own metadata ({"slideshow": {"slide_type": ...}}: slide, subslide, fragment, skip, notes or -) comes first.
Formulas become MathML; links lead to other lessons' slides, or nowhere.
"""

from __future__ import annotations

import copy
import importlib.resources
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from latex2mathml.converter import convert
from nbconvert.exporters import SlidesExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from course.pages.folds import FOLD, placed
from course.pages.headings import heading_of, split_at_headings
from roseinfer.paths import ROOT

TEMPLATES = ROOT / "teaching"
OWN = TEMPLATES / "slides"
REVEAL = importlib.resources.files("pyreveal") / "revealjs" / "dist"
LONGEST = 12  # lines of code that are shown unfolded
LEFT_OUT = ("teach.check(", "teach.hint(", "teach.predictions(", "teach.progress(", "teach.show_")
SMALL = ("teach.reveal(", "teach.say")  # a card of a few lines, which joins the slide before it


def lay_out(nb: NotebookNode) -> NotebookNode:
    """Copy the notebook so that every cell has a slide_type, text is split at headings, and long code is folded."""
    nb = copy.deepcopy(nb)
    core = [each.cell for each in placed(nb.cells) if not each.folded and not each.cell.metadata.get(FOLD)]
    nb.cells = [part for cell in core for part in _parts(cell)]
    section, before = "", None
    for cell in nb.cells:
        heading = heading_of(cell.source) if cell.cell_type == "markdown" else None
        if heading and heading[0] == 2:
            section = heading[1]
        if cell.cell_type == "code":
            _tidy(cell)
        slideshow = cell.metadata.setdefault("slideshow", nbformat.from_dict({}))
        slideshow.setdefault("slide_type", _slide_type(cell, section, before))
        if slideshow.slide_type != "skip":
            before = cell
    return nb


def _parts(cell: NotebookNode) -> list[NotebookNode]:
    """Split a text cell into one cell for each of its headings. The first keeps the cell's own metadata."""
    if cell.cell_type != "markdown":
        return [cell]
    first, *rest = split_at_headings(cell.source) or [""]
    cell.source = first
    return [cell, *map(nbformat.v4.new_markdown_cell, rest)]


def _tidy(cell: NotebookNode) -> None:
    """Drop what only a kernel can draw (a slider: a text without a view), and fold long code."""
    cell.outputs = [o for o in cell.outputs if o.output_type != "display_data" or set(o.data) != {"text/plain"}]
    lines = len(cell.source.splitlines())
    if lines > LONGEST:
        cell.metadata["folded"] = f"code, {lines} lines"


def _slide_type(cell: NotebookNode, section: str, before: NotebookNode | None) -> str:
    """Choose the slide type. section: the level 2 heading above, "" before the first. before: the last cell shown."""
    if cell.cell_type == "markdown":
        heading = heading_of(cell.source)
        return "slide" if heading and heading[0] <= 2 else "subslide"
    if not section or _is_left_out(cell):
        return "skip"
    if not cell.outputs:
        return "-"
    is_question = "teach.predict(" in cell.source and before is not None and "teach.predict(" in before.source
    joins = is_question or any(call in cell.source for call in SMALL)
    return "fragment" if joins or (before is not None and before.cell_type == "markdown") else "subslide"


def _is_left_out(cell: NotebookNode) -> bool:
    """Tell whether a cell is a learner's part of an exercise (not its card) or a listing, too long for slides."""
    return "exercise" in cell.metadata or cell.source.startswith(LEFT_OUT)


class Renderer(IPythonRenderer):
    """Renders Markdown whose formulas and links need no network and no other folder."""

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return convert(body, display="block")

    def link(self, text: str, url: str, title: str | None = None) -> str:
        lesson, dot, anchor = url.partition(".ipynb")
        if dot and "/" not in lesson:
            return super().link(text, f"{lesson}.html{anchor}", title)
        return super().link(text, url, title) if url.startswith(("http://", "https://")) else text


class LessonExporter(SlidesExporter):
    """nbconvert's slides, with a template that loads nothing. resources["lesson"]: what the template puts in."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(extra_template_basedirs=[str(TEMPLATES)], template_name=OWN.name, **kwargs)
        self.exclude_input_prompt = self.exclude_output_prompt = True

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        markdown = MarkdownWithMath(renderer=Renderer(escape=False, exclude_anchor_links=True))
        yield "markdown2html", markdown.render


def to_slides(nb: NotebookNode) -> str:
    """Make the HTML of a lesson's slides. Raises ValueError for a notebook that does not begin with a title."""
    title = heading_of(nb.cells[0].source) if nb.cells and nb.cells[0].cell_type == "markdown" else None
    if title is None or title[0] != 1:
        raise ValueError("nb must begin with a Markdown cell that has a `# title`")
    lesson = {
        "title": title[1],
        "reveal_css": (REVEAL / "reveal.css").read_text(),
        "reveal_js": (REVEAL / "reveal.js").read_text(),
        "own_css": (OWN / "slides.css").read_text(),
        "own_js": (OWN / "fit.js").read_text(),
    }
    body, _ = LessonExporter().from_notebook_node(lay_out(nb), {"lesson": lesson})
    return body


def write_slides(notebook: Path, folder: Path) -> Path:
    """Write <folder>/<name of the notebook>.html. Raises ValueError as to_slides does."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / f"{notebook.stem}.html"
    page.write_text(to_slides(nbformat.read(notebook, as_version=4)), encoding="utf-8")
    return page
