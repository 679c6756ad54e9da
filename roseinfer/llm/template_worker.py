"""The process in which chat templates are rendered.

A template is a program that comes with a model. The sandbox that transformers renders it in keeps it from Python's
objects, but neither from endless loops nor from texts that fill the memory. A process can be ended within both.
"""

from __future__ import annotations

from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

MOST_REASON = 1000  # characters of what a template raises


def answer(most_characters: int, template_kwargs: dict[str, Any], **settings: Any) -> dict[str, str]:
    """Render a template, and return {"text": ...} or {"error": ...}."""
    try:
        [text], _ = render_jinja_template(**settings, **template_kwargs)
    except Exception as e:  # whatever a template may raise: RecursionError and MemoryError, too
        return {"error": " ".join(str(e).split())[:MOST_REASON] or type(e).__name__}
    if len(text) > most_characters:
        return {"error": f"it renders {len(text)} characters, allowed: at most {most_characters}"}
    return {"text": text}
