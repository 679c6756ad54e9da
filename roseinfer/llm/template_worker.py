"""The process in which chat templates are rendered, with Jinja alone: transformers would take seconds to import.

A template is a program that comes with a model. A sandbox keeps it from Python's objects, but neither from endless
loops nor from texts that fill the memory. A process can be ended within both. The sandbox, and what a template may
call there, are those of transformers (its utils/chat_template_utils.py).
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MOST_REASON = 1000  # characters of what a template raises
END = "CONTINUE_FINAL_MESSAGE_TAG "  # marks where the last message ends, for more of it
REASONING = (
    "reasoning_content",
    "thinking",
    "reasoning",
)  # names of what a model thought; templates read the first two


def answer(most_characters: int, template_kwargs: dict[str, Any], **settings: Any) -> dict[str, str]:
    """Render a template, and return {"text": ...} or {"error": ...}."""
    try:
        text = rendered(**settings, **template_kwargs)
    except Exception as e:  # whatever a template may raise: RecursionError and MemoryError, too
        return {"error": " ".join(str(e).split())[:MOST_REASON] or type(e).__name__}
    if len(text) > most_characters:
        return {"error": f"it renders {len(text)} characters, allowed: at most {most_characters}"}
    return {"text": text}


def rendered(
    messages: list[dict[str, Any]], chat_template: str, continue_final_message: bool = False, **names: Any
) -> str:
    """Return the text of a conversation. names: what else the template reads, such as tools.

    Raises ValueError where the last message is to go on and the text does not have it, and what a template may raise.
    """
    messages = [_with_reasoning(message) for message in messages]
    last = messages[-1]["content"]
    if continue_final_message:
        messages[-1] = messages[-1] | {"content": last + END}
    text = compiled(chat_template).render({"documents": None} | names, messages=messages)
    if not continue_final_message:
        return text
    at = text.rfind(END.strip())
    if at < 0 or last.strip() not in text:
        raise ValueError("continue_final_message=True, and its text does not have the last message as it is")
    return text[:at] if text.startswith(END, at) else text[:at].rstrip()  # the template took the spaces at its end


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose reasoning has the names that templates read."""
    found = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found} | message | {"reasoning_content": found}


@lru_cache
def compiled(chat_template: str) -> Template:
    """Compile a template in the sandbox. Raises jinja2.TemplateSyntaxError."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlocks, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": MakesDicts(),
        "namespace": PlainNamespace,
    }
    return env.from_string(chat_template)


class GenerationBlocks(Extension):
    """{% generation %} ... {% endgeneration %} marks what a model writes, for training: here it is its content."""

    tags = {"generation"}  # noqa: RUF012  # as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class MakesDicts:
    """The template's `dict`: a function, which has nothing of Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """The template's `namespace`, without names that begin with an underscore: those are Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as Jinja's, so that an attribute may be called self
        self, attributes = args[0], dict(*args[1:], **kwargs)
        for name in attributes:
            require_plain(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        require_plain(name)
        super().__setitem__(name, value)


def require_plain(name: object) -> None:
    """Raise SecurityError for the name of an attribute of Python's own."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace's attribute must not begin with an underscore, got {name!r}")


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write JSON for a model: Jinja's own filter escapes what HTML would read."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
