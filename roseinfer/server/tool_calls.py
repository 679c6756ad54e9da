"""Calls of tools that a client requires: a grammar that the text has to follow, and the calls read back from it.

A call is written as most models were trained to write it, {"name": "copy", "arguments": {"path": "a.py"}}, and several
are a JSON list of them. The grammar decides each space, so that a model cannot write spaces without end. The reader
finds the end of arguments by counting braces, while they are still being written.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from roseinfer.structured_outputs import StructuredOutputsParams

from .errors import ApiError
from .protocol import ChatBody, Function, NamedTool

Json = dict[str, Any]
HEAD = re.compile(r'\{"name": "([^"]+)", "arguments": (?=\{)')
NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as json.dumps writes it


def call_form(body: ChatBody) -> StructuredOutputsParams | None:
    """Return the form of the calls that a body requires, or None. Raises ApiError for a wrong choice."""
    functions = required_functions(body)
    if not functions:
        return None
    if body.structured_outputs or (body.response_format and body.response_format.type != "text"):
        name = "structured_outputs" if body.structured_outputs else "response_format"
        raise ApiError(f"tool_choice requires a call, and {name} another form of the text: send one of them", name)
    is_one = isinstance(body.tool_choice, NamedTool) or body.parallel_tool_calls is False
    calls = " | ".join(map(call_rule, functions))
    start = "call" if is_one else '"[" call (", " call)* "]"'
    return StructuredOutputsParams(grammar=f"start: {start}\ncall: {calls}")


def required_functions(body: ChatBody) -> list[Function]:
    """List the functions of which one has to be called; [] for none."""
    choice, functions = body.tool_choice, [tool.function for tool in body.tools or []]
    if choice is None or choice in ("none", "auto"):
        return []
    names = [function.name for function in functions]
    if not functions:
        raise ApiError(
            "tool_choice requires a call, and there are no tools: send tools, or leave it out", "tool_choice"
        )
    if len({*names}) < len(names):
        raise ApiError(f"the functions of tools must have different names, got {', '.join(names)}"[:500], "tools")
    if not isinstance(choice, NamedTool):
        return functions
    name = choice.function.name
    if name not in names:
        allowed = ", ".join(names)[:500]
        raise ApiError(f"tool_choice must name a function of tools ({allowed}), got {name!r:.100}", "tool_choice")
    return [functions[names.index(name)]]


def call_rule(function: Function) -> str:
    """Return the rule of a call of this function, in llguidance's Lark syntax.

    The schema stays whole, so that its references hold. Raises ApiError for parameters that are not an object's schema.
    """
    schema = NO_ARGUMENTS if function.parameters is None else function.parameters
    if schema.get("type", "object") != "object":
        raise ApiError(
            f"the parameters of the function {function.name!r} must be a schema of an object, "
            f"got type={schema['type']!r:.100}",
            "tools",
        )
    head = f'{{"name": "{function.name}", "arguments": '
    return f'{json.dumps(head)} %json {json.dumps({"type": "object"} | schema | {"x-guidance": SPACES})} "}}"'


class CallReader:
    """Reads the calls of one sample from its text, as that grows."""

    def __init__(self) -> None:
        self.num_calls = 0
        self._before = ""  # the text since the last arguments
        self._depth = 0  # braces of arguments that are open
        self._is_string = self._is_escaped = False

    @property
    def is_whole(self) -> bool:
        """Whether there is a call, and no arguments are still open."""
        return self.num_calls > 0 and not self._depth

    def read(self, text: str) -> list[Json]:
        """Return what more text adds to the calls, as OpenAI's deltas: at most one of each call."""
        deltas: list[Json] = []
        while text:
            if not self._depth:
                self._before += text
                head = HEAD.search(self._before)
                if not head:
                    break
                text, self._before = self._before[head.end() :], ""
                deltas.append(self._begun(head[1]))
            end = self._end_of_arguments(text)
            if not deltas:
                deltas.append({"index": self.num_calls - 1, "function": {"arguments": ""}})
            deltas[-1]["function"]["arguments"] += text[:end]
            text = text[end:]
        return deltas

    def _begun(self, name: str) -> Json:
        self.num_calls += 1
        about = {"index": self.num_calls - 1, "id": f"call_{uuid.uuid4().hex}", "type": "function"}
        return about | {"function": {"name": name, "arguments": ""}}

    def _end_of_arguments(self, text: str) -> int:
        """Return how many characters belong to the arguments that are being read."""
        for at, character in enumerate(text):
            if self._is_string:
                self._is_string = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._is_string = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if not self._depth:
                    return at + 1
        return len(text)
