"""StructuredOutputsParams: the form that a request's text has to follow, named as in vLLM."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .arguments import refuse_wrong_arguments, shortened


@refuse_wrong_arguments()
@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Say what a text has to follow: exactly one of json, regex, choice, grammar and json_object.

    Args:
        json: a JSON schema, as a dict or as its text.
        regex: a regular expression that the whole text matches.
        choice: texts; the answer is one of them.
        grammar: a grammar in llguidance's Lark syntax.
        json_object: True for any JSON object.
        disable_any_whitespace: write JSON without spaces and newlines between its parts, which small models may
            otherwise write without end.

    Raises ValueError for none, for several, and for a wrong type.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if not (value is None or (isinstance(value, str) and value)):
                raise ValueError(f"{name} must be a text that is not empty, got {value!r}")
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.json is not None:
            object.__setattr__(self, "json", _schema(self.json))
        if self.choice is not None:
            object.__setattr__(self, "choice", _texts(self.choice))
        kinds = [own.name for own in fields(self) if own.name != "disable_any_whitespace"]
        given = [kind for kind in kinds if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            names = ", ".join(kinds)
            raise ValueError(f"structured outputs need exactly one of {names}, got {' and '.join(given) or 'none'}")


def _schema(given: object) -> dict[str, Any]:
    try:
        schema = json.loads(given) if isinstance(given, str) else given
        json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        what = "a text" if isinstance(given, str) else "a value"
        got = shortened(reprlib.repr(given))  # which has an end for any depth
        raise ValueError(f"json must be a JSON schema, got {what} that is not JSON ({error}): {got}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"json must be a JSON schema, a dict or the text of an object, got {given!r:.100}")
    return schema


def _texts(given: object) -> tuple[str, ...]:
    texts = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"choice must be a list of texts, none of them empty, got {given!r:.100}")
    return texts
