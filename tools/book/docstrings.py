"""Docstrings state arguments in running text, as `name: what it is.`; a page of the API shows them as a list."""

from __future__ import annotations

import inspect
import re
from typing import Any

from sphinx.application import Sphinx


def list_arguments(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    if what not in ("class", "function", "method"):
        return
    try:
        names = list(inspect.signature(obj).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return
    lines[:] = "\n\n".join(_listed(text, names) for text in "\n".join(lines).split("\n\n")).splitlines()


def _listed(paragraph: str, names: list[str]) -> str:
    if not names or "::" in paragraph or paragraph.startswith((" ", "-", "*")):
        return paragraph
    either = "|".join(map(re.escape, names))
    prose, *parts = re.split(rf"(?:^|(?<=[.)] ))(?=(?:{either})(?:, (?:{either}))*: )", " ".join(paragraph.split()))
    items = [re.sub(r"^([\w, ]+): ", r"- **\1**: ", part.strip(), count=1) for part in parts]
    return "\n\n".join(filter(None, [prose.strip(), "\n".join(items)]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", list_arguments)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
