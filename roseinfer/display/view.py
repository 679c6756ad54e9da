"""Base of the course's display objects: two views, one look on JupyterLab's light and dark themes."""

from __future__ import annotations

import html
import re
from typing import Any, Literal

# Meanings use Okabe and Ito's colours, never red against green, and never colour alone. The bar of a card is an inline
# style: JupyterLab keeps those in a notebook that has just been opened, and drops <style> until it has been run.
STYLE = """<style>
.rose-card p { margin: 0.35em 0; }
.rose-card summary { cursor: pointer; }
.rose-muted { opacity: 0.75; font-size: 0.92em; }
</style>"""
BAR = {"plain": "#888888", "good": "#0072B2", "not yet": "#E69F00"}


class View:
    """Shown twice: repr is the exact text (facts that are the same anywhere), to_html the live view."""

    def to_html(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        return {"text/plain": repr(self), "text/html": self.to_html()}


def card(content: str, kind: Literal["plain", "good", "not yet"] = "plain") -> str:
    style = f"border-left: 4px solid {BAR[kind]}; padding: 3px 14px; margin: 5px 0"
    return f'{STYLE}<div class="rose-card" style="{style}">{content}</div>'


LABEL = re.compile(r"(?P<label>[A-Z][\w ]*):\s+(?P<rest>.*)", re.DOTALL)


def prose(text: str) -> str:
    """Turn docstring-like text into HTML: blank lines part paragraphs, `- ` starts a bullet.

    Inside, `code`, *emphasis* and **bold** work. Lines such as "The change:   ...", each with indented lines below it,
    become paragraphs with a bold label.
    """
    return "".join(_block(block) for block in re.split(r"\n\s*\n", text.strip()))


def inline(text: str) -> str:
    text = html.escape(" ".join(text.split()), quote=False)
    parts = re.split(r"`([^`]+)`", text)  # every second one is code
    parts[::2] = map(_emphasised, parts[::2])
    parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
    return "".join(parts)


def _emphasised(text: str) -> str:
    text = re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)
    return re.sub(r"\*(?=\S)([^*]+)(?<=\S)\*", r"<em>\1</em>", text)


def _block(block: str) -> str:
    entries = re.split(r"\n(?=\S)", block)  # an indented line belongs to the one above it
    if all(entry.startswith("- ") for entry in entries):
        return "<ul>" + "".join(f"<li>{inline(entry[2:])}</li>" for entry in entries) + "</ul>"
    labelled = [LABEL.fullmatch(entry) for entry in entries]
    if len(entries) > 1 and all(labelled):
        return "".join(f"<p><b>{m['label']}:</b> {inline(m['rest'])}</p>" for m in labelled if m)
    return f"<p>{inline(block)}</p>"
