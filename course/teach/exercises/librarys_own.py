"""Check whether an answer is the library's own: handed in as it is, compiled, passed on to, or inherited unchanged."""

from __future__ import annotations

import ast
import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from ..source import members

LIBRARY = ("course", "roseinfer", "stages")
# What every class has, or what says nothing of what it does.
GIVEN = {
    *vars(type("Empty", (), {})),
    "__orig_bases__",
    "__parameters__",
    "__abstractmethods__",
    "_abc_impl",
    "name",
    "__qualname__",
    "__annotations__",
    "__firstlineno__",
    "__static_attributes__",
}


def librarys_own(answer: Any) -> str:
    """Name the library's function or class that the answer is, or that it only passes its arguments on to.

    Returns "" for an answer with any code of the learner's, which may use the library. A class is the library's own
    when it, and the learner's classes that it inherits from, contain nothing but the library's code.
    """
    if isinstance(answer, type):
        return _name(answer) if _is_librarys(answer) else _of_class(answer)
    return _of_function(answer)


def _of_class(cls: type) -> str:
    classes = [base for base in cls.__mro__ if base not in members.NOT_COURSE]
    learners = [base for base in classes if not _is_librarys(base)]
    written = [value for base in learners for name, value in vars(base).items() if name not in GIVEN]
    taken = [_of_function(value) for value in written]
    inherited = [_name(base) for base in classes if _is_librarys(base)]
    return (taken or inherited or [""])[0] if all(taken) else ""


def _of_function(function: Any, seen: frozenset[int] = frozenset()) -> str:
    """Name the library's function. seen: functions that led here; one that passes on to itself is the learner's."""
    function = _plain(function)
    if not isinstance(function, (FunctionType, type)) or id(function) in seen:
        return ""
    if _is_librarys(function):
        return _name(function)
    return _of_function(_passes_on_to(function), seen | {id(function)})


def _plain(function: Any) -> Any:
    """Unwrap a function: static and class methods, a property, a partial, the compiler of a kernel or a loop."""
    from ..measure.kernel_loads import plain_function  # here, because it needs torch

    if isinstance(function, (staticmethod, classmethod, MethodType)):
        return _plain(function.__func__)
    if isinstance(function, property):
        return _plain(function.fget)
    if isinstance(function, partial):
        return _plain(function.func)
    inner = plain_function(function)
    return inner if inner is function else _plain(inner)


def _passes_on_to(function: Any) -> Any:
    """Return what a function calls if it does nothing else and hands over its own arguments in order; else None."""
    try:
        nodes = ast.walk(ast.parse(members.source_of(function)))
        made = next(node for node in nodes if isinstance(node, (ast.FunctionDef, ast.Lambda)))
        names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        call = made.body if isinstance(made, ast.Lambda) else getattr(made.body[-1], "value", None)
        only = isinstance(made, ast.Lambda) or all(isinstance(part, (ast.Expr, ast.Return)) for part in made.body)
        # Only a name is looked up: nothing of the learner's runs here.
        if only and isinstance(call, ast.Call) and _is_name(call.func) and _handed(call) == _taken(made.args):
            return eval(compile(ast.Expression(call.func), "<answer>", "eval"), names)
    except Exception:  # no source, more than a call, or a name that is not there yet
        pass
    return None


def _is_name(node: ast.expr) -> bool:
    """Whether a node is a name, or an attribute of one, such as F.softmax."""
    return isinstance(node, ast.Name) or (isinstance(node, ast.Attribute) and _is_name(node.value))


def _taken(arguments: ast.arguments) -> list[str]:
    several = [arg.arg for arg in (arguments.vararg, arguments.kwarg) if arg]
    return [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)] + several


def _handed(call: ast.Call) -> list[str]:
    values = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
    values += [keyword.value for keyword in call.keywords]
    return [value.id if isinstance(value, ast.Name) else "" for value in values]


def _is_librarys(thing: Any) -> bool:
    return (thing.__module__ or "").split(".")[0] in LIBRARY


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"
