"""Mistakes for short solutions, in which the usual mistakes of mutations.py are few.

Another variable or attribute; an element or an argument left out or stated twice; branches swapped; a loop from its end
or over its first item alone; a function that returns nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

OTHER_OPERATORS: dict[type[ast.AST], type[ast.operator]] = {
    ast.Add: ast.Mult,
    ast.Sub: ast.Mult,
    ast.Mult: ast.Sub,
    ast.Mod: ast.Sub,
    ast.FloorDiv: ast.Mult,
}


class Siblings:
    """The tree's other names of the same kind, which could replace a variable or an attribute."""

    def __init__(self, tree: ast.Module) -> None:
        self.variables: dict[ast.AST, list[str]] = {}  # of a Name that is read: those of its function
        self.attributes: dict[str, list[str]] = {}  # of an object, by its source
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._note_variables(node)
            elif isinstance(node, ast.Attribute):
                of_this_object = self.attributes.setdefault(ast.unparse(node.value), [])
                if node.attr not in of_this_object:
                    of_this_object.append(node.attr)

    def _note_variables(self, function: ast.FunctionDef) -> None:
        arguments = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs)]
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        stored = [name.id for name in names if isinstance(name.ctx, ast.Store)]
        variables = [*dict.fromkeys([*arguments, *stored])]
        for name in names:
            if isinstance(name.ctx, ast.Load) and name.id in variables:
                self.variables[name] = variables

    def of(self, node: ast.AST) -> Iterator[ast.expr]:
        match node:
            case ast.Name(id=name):
                yield from (ast.Name(other) for other in self.variables.get(node, []) if other != name)
            case ast.Attribute(value=value, attr=name):
                others = self.attributes.get(ast.unparse(value), [])
                yield from (ast.Attribute(value, other) for other in others if other != name)


def other_expressions(field: str, node: ast.AST, siblings: Siblings) -> Iterator[ast.expr]:
    """Yield replacements of the expression `node`, which its parent has as `field`."""
    yield from siblings.of(node)
    if field == "iter":
        yield from (ast.Subscript(ast.List([ast.Starred(node)]), part) for part in (_BACKWARDS, _FIRST))
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OTHER_OPERATORS:
            yield ast.BinOp(left, OTHER_OPERATORS[type(op)](), right)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Tuple(elts=elts) | ast.List(elts=elts) if len(elts) > 1:
            yield from (type(node)(others, ast.Load()) for others in _reordered(elts))
            if isinstance(node, ast.List):
                yield from (ast.List([*elts[:i], element, *elts[i:]], ast.Load()) for i, element in enumerate(elts))
        case ast.Call(func=func, args=args, keywords=keywords) if args:
            yield from (ast.Call(func, others, keywords) for others in _reordered(args))
            yield from args[1:]


_BACKWARDS, _FIRST = ast.Slice(step=ast.Constant(-1)), ast.Slice(upper=ast.Constant(1))


def _reordered(nodes: list[ast.expr]) -> Iterator[list[ast.expr]]:
    """Yield the list without each element, and with each two neighbours swapped."""
    for i in range(len(nodes)):
        yield [*nodes[:i], *nodes[i + 1 :]]
    for i in range(len(nodes) - 1):
        yield [*nodes[:i], nodes[i + 1], nodes[i], *nodes[i + 2 :]]


def other_statements(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    match statement:
        case ast.If(test=test, body=body, orelse=orelse) if orelse:
            yield [ast.If(test, orelse, body)]
        case ast.If(body=body):
            yield body
        case ast.Return(value=value) if value is not None:
            yield [ast.Return()]
            yield [ast.Expr(value)]
        case ast.Raise():
            yield [ast.Return()]
