"""What a learner handed in: whether it is still the stub, and where in their cell an error arose."""

from __future__ import annotations

import ast
import linecache
import traceback
from types import FunctionType
from typing import Any

from ..source import members


def is_stub(answer: Any) -> bool:
    """None, `...`, a function whose source does nothing yet, or a class that adds nothing but such methods.

    Nothing yet: docstring, pass, `...`, raise NotImplementedError, names set to None, returning any of these.
    """
    if isinstance(answer, type):
        return not _own_attributes(answer) and all(map(is_stub, members.own_methods(answer).values()))
    if not isinstance(answer, FunctionType):
        return answer is None or answer is Ellipsis
    try:
        (definition,) = ast.parse(members.source_of(answer)).body
    except (ValueError, SyntaxError):  # no source, or a lambda cut out of its line: let the checker judge
        return False
    empty: set[str] = set()
    return isinstance(definition, ast.FunctionDef) and all(_does_nothing(node, empty) for node in definition.body)


def _own_attributes(cls: type) -> list[str]:
    """What the class changes by plain attributes. A text, such as a stage's name, changes no behaviour."""
    own_methods = members.own_methods(cls)
    return [
        name
        for name, value in vars(cls).items()
        if name not in own_methods and not name.startswith("_") and not isinstance(value, str)
    ]


def _does_nothing(node: ast.stmt, empty: set[str]) -> bool:
    """empty: names that hold None so far."""
    if isinstance(node, ast.Raise):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    if isinstance(node, ast.Assign) and _is_nothing(node.value, empty):
        empty.update(target.id for target in node.targets if isinstance(target, ast.Name))
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Return) and _is_nothing(node.value, empty))


def _is_nothing(value: ast.expr | None, empty: set[str]) -> bool:
    if isinstance(value, ast.Constant):
        return value.value in (None, Ellipsis)
    if isinstance(value, ast.Tuple) and value.elts:  # `return None, None`
        return all(_is_nothing(element, empty) for element in value.elts)
    return value is None or (isinstance(value, ast.Name) and value.id in empty)


def describe_error(error: Exception, namespace: dict[str, Any]) -> str:
    """Type, message, and the innermost line in the learner's code, which is what has `namespace` as its globals."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    lines = [
        (frame.f_code.co_filename, lineno)
        for frame, lineno in traceback.walk_tb(error.__traceback__)
        if frame.f_globals is namespace  # all cells of a notebook share it
    ]
    if not lines:
        return f"checking your answer raised {what}"
    filename, lineno = lines[-1]
    line = linecache.getline(filename, lineno).strip()
    return f"{what}, in line {lineno} of your cell" + (f": `{line}`" if line else "")
