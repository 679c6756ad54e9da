"""An answer as handed in: whether it is still the stub that was handed out, and where in the cell an error arose."""

from __future__ import annotations

import ast
import dis
import linecache
import traceback
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from ..measure.kernel_loads import plain_function
from ..source import members

Instructions = list[tuple[str, Any]]


def is_stub(answer: Any, stub: str) -> bool:
    """Whether `answer` is what the code of `stub`, the cell as it was handed out, defines under that name.

    Compares compiled code: comments and docstrings do not count as an attempt, but any other change does, also another
    base class. A kernel is compared by its function. A value is untouched while it is None or `...`.
    """
    answer = plain_function(answer)
    if isinstance(answer, type):
        return _is_stub_class(answer, stub)
    if isinstance(answer, FunctionType):
        return _code_of(stub).get(answer.__name__) == instructions(answer.__code__)
    return answer is None or answer is Ellipsis


def _is_stub_class(cls: type, stub: str) -> bool:
    if _bases_in(stub).get(cls.__name__) != [base.__name__ for base in cls.__bases__ if base is not object]:
        return False
    if any(base.__name__ in (older.__name__ for older in base.__mro__[1:]) for base in cls.__bases__):
        return False  # `class NaiveCat(NaiveCat)` in another cell: the learner's own, under the course's name
    prefix = f"{cls.__name__}."
    handed_out = {name.removeprefix(prefix): code for name, code in _code_of(stub).items() if name.startswith(prefix)}
    methods = members.own_methods(cls)
    attributes = [name for name in vars(cls) if name not in methods and not _is_given(name, cls)]
    return not attributes and handed_out == {name: instructions(f.__code__) for name, f in methods.items()}


@cache  # not again beside threads of an answer: where two threads parse at once, Python 3.11 may raise SystemError
def _bases_in(stub: str) -> dict[str, list[str]]:
    return {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for node in ast.parse(stub).body
        if isinstance(node, ast.ClassDef)
    }


def _is_given(name: str, cls: type) -> bool:
    """Whether every class has the attribute: from Python (__module__ and others), ABC, or Stage, which sets name."""
    return name.startswith("__") or name == "_abc_impl" or (name == "name" and vars(cls)[name] == cls.__name__)


def _code_of(stub: str) -> dict[str, Instructions]:
    """Map each function (or Class.method) of a stub to its instructions."""
    found: dict[str, Instructions] = {}

    def collect(code: CodeType, prefix: str) -> None:
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                found[prefix + inner.co_name] = instructions(inner)
                collect(inner, f"{prefix}{inner.co_name}.")

    collect(compile(stub, "<stub>", "exec"), "")
    return found


def does_nothing(function: Any) -> bool:
    """Whether the body is `...`, as in a stub. For a compiled function, the Python function inside it is checked."""
    return instructions(getattr(function, "py_func", function).__code__) == instructions(_empty.__code__)


def _empty() -> None: ...


def instructions(code: CodeType) -> Instructions:
    """List the instructions of a code object and of the functions that it makes, without line numbers and docstring."""
    return [
        (instruction.opname, instructions(value) if isinstance(value := instruction.argval, CodeType) else value)
        for instruction in dis.get_instructions(code)
    ]


def describe_error(error: Exception, namespace: dict[str, Any]) -> str:
    """Say an error's type and message, and the innermost line of the learner's code, whose globals are `namespace`."""
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
