"""Sections whose heading begins with "Deeper" are folded, as they are in JupyterLab."""

from __future__ import annotations

from docutils import nodes
from sphinx.application import Sphinx

from tools.shape import DEEPER


class Folded(nodes.General, nodes.Element):
    """The content below a folded heading."""


def fold_deeper(app: Sphinx, doctree: nodes.document) -> None:
    for section in list(doctree.findall(nodes.section)):
        title, *rest = section.children
        if title.astext().startswith(DEEPER) and rest:
            section["classes"].append("deeper")
            folded = Folded("", *[section.children[i] for i in range(1, len(section.children))])
            section.children = [title, folded]
            folded.parent = section


def visit_folded(translator: object, node: Folded) -> None:
    translator.body.append('<details class="deeper"><summary>Show this part</summary>\n')  # type: ignore[attr-defined]


def depart_folded(translator: object, node: Folded) -> None:
    translator.body.append("</details>\n")  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Folded, html=(visit_folded, depart_folded))
    app.connect("doctree-read", fold_deeper)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
