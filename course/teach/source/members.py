"""What a class is made of, as source text; classes from notebook cells too."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import textwrap
import tokenize
from abc import ABC
from types import FunctionType, MethodType
from typing import Any, Generic

from ..measure.kernel_loads import plain_function

NOT_COURSE = (object, ABC, Generic)
INSIDE: dict[type, str] = {
    staticmethod: "__func__",
    classmethod: "__func__",
    MethodType: "__func__",
    property: "fget",
    functools.cached_property: "func",
    functools.partial: "func",
}
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def own_methods(cls: type) -> dict[str, FunctionType]:
    """Return the methods and properties that the class itself defines, in the order of its source."""
    functions = {name: _function(value) for name, value in vars(cls).items()}
    return {name: function for name, function in functions.items() if function is not None}


def methods(cls: type) -> dict[str, FunctionType]:
    """Return all methods of the class, each found through the MRO; its own come first."""
    found: dict[str, FunctionType] = {}
    for klass in _course_classes(cls):
        for name, function in own_methods(klass).items():
            found.setdefault(name, function)
    return found


def helpers(cls: type) -> dict[str, str]:
    """Map the functions and classes beside the class and its bases, in their modules, to their source."""
    classes = _course_classes(cls)
    names = {klass.__name__ for klass in classes}
    found: dict[str, str] = {}
    for klass in reversed(classes):
        if klass.__module__ != "__main__":  # a notebook's other cells are no part of a stage
            source = module_source(klass)
            for node in ast.parse(source).body:
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in names:
                    found[node.name] = _segment(source, node)
    return found


def source_of(function: FunctionType) -> str:
    """Return the dedented source of a function. Raises ValueError when it is nowhere to be found."""
    if function.__code__.co_filename == "<string>":  # inspect would take the lines of the module around it
        raise _no_source(function)
    try:
        return textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError) as error:
        raise _no_source(function) from error


def class_source(cls: type) -> str:
    """Return the source of a class. Raises ValueError when it is nowhere to be found."""
    try:
        return textwrap.dedent(inspect.getsource(cls)).rstrip()
    except (OSError, TypeError):
        pass
    # For a class, inspect wants a module with a file, which a notebook is not. Its methods know their cell.
    for method in own_methods(cls).values():
        cell = "".join(linecache.getlines(method.__code__.co_filename))
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                if node.lineno <= method.__code__.co_firstlineno <= (node.end_lineno or 0):
                    return textwrap.dedent(_segment(cell, node))
    raise _no_source(cls)


def module_source(cls: type) -> str:
    module = inspect.getmodule(cls)
    try:
        return inspect.getsource(module)  # type: ignore[arg-type]
    except (OSError, TypeError) as error:
        raise _no_source(cls) from error


def count_code_lines(source: str) -> int:
    """Count the lines that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _course_classes(cls: type) -> list[type]:
    return [klass for klass in cls.__mro__ if klass not in NOT_COURSE]


def unwrapped(value: Any) -> Any:
    """Find what a static or class method, a property, a partial, or the compiler of a kernel or a loop is made of."""
    for kind, inside in INSIDE.items():
        if isinstance(value, kind):
            return unwrapped(getattr(value, inside))
    inner = plain_function(value)
    return inner if inner is value else unwrapped(inner)


def _function(value: Any) -> FunctionType | None:
    """Find the plain function inside a method, also a decorated one."""
    value = unwrapped(value)
    value = inspect.unwrap(value) if callable(value) else value
    return value if isinstance(value, FunctionType) else None


def _segment(source: str, node: ast.FunctionDef | ast.ClassDef) -> str:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(source.splitlines()[first - 1 : node.end_lineno])


def _no_source(thing: Any) -> ValueError:
    name = getattr(thing, "__qualname__", repr(thing))
    return ValueError(
        f"{name} has no source that can be shown: define it in a module or a notebook cell, not with exec or type()"
    )
