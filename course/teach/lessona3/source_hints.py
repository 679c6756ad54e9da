"""Mistakes that a kernel's own lines show: told together with the case on which the kernel is wrong."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType
from typing import Any

from ..measure.kernel_loads import plain_function

POINTER = "a pointer has no [ ]: read with tl.load({name} + ...), write with tl.store({name} + ..., tile)"
BUILTIN = "Python's {name} does not work on a tile: tl.{name}(tile, axis=0)"
CHAIN = "put each comparison in parentheses: & binds tighter than <"
AND = "between tiles, use & in place of `and`"


def hint_of(kernel: Any) -> str:
    """Return the first of these mistakes in a kernel's source, or "".

    Ask only about a kernel that is refused: an `and` between numbers is right.
    """
    tree = _parsed(kernel)
    pointers = {argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)} - _assigned(tree)
    return next((hint for node in ast.walk(tree) if (hint := _mistake(node, pointers))), "")


def calls_softmax(kernel: Any, seen: frozenset[Any] = frozenset()) -> bool:
    """Tell whether a kernel uses Triton's own softmax, under whatever name, or calls a kernel that does.

    seen: the functions that led here, which need no second look.
    """
    import triton.language as tl

    function = plain_function(kernel)
    if function is plain_function(tl.softmax):
        return True
    if function is kernel or function in seen or not isinstance(function, FunctionType):
        return False
    if any(isinstance(node, ast.Attribute) and node.attr == "softmax" for node in ast.walk(_parsed(kernel))):
        return True
    used = inspect.getclosurevars(function)
    return any(calls_softmax(value, seen | {function}) for value in (*used.globals.values(), *used.nonlocals.values()))


def _parsed(kernel: Any) -> ast.Module:
    """Parse a kernel's source; an empty one where there is none to read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(plain_function(kernel))))
    except (OSError, TypeError, SyntaxError):
        return ast.parse("")


def _mistake(node: ast.AST, pointers: set[str]) -> str:
    match node:
        case ast.Subscript(value=ast.Name(id=name)) if name in pointers:
            return POINTER.format(name=name)
        case ast.Call(func=ast.Name(id="sum" | "max" | "min" as name), args=[_]):
            return BUILTIN.format(name=name)
        case ast.Compare(left=left, comparators=[*others]) if len(others) > 1 and any(map(_is_and, [left, *others])):
            return CHAIN
        case ast.BoolOp(op=ast.And()):
            return AND
    return ""


def _is_and(node: ast.AST) -> bool:
    """Tell whether a node is a & b."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd)


def _assigned(tree: ast.AST) -> set[str]:
    """Collect the names that get another value: x = tl.load(x + at) makes x a tile."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
