"""Mutants of a piece of code: the same code with one small mistake in it, made from its syntax tree.

    for change, source in mutations("def f(n): return n + 1"):
        ...  # "return n + 1 -> return n - 1", and the whole source

The mistakes are those that people make: another operator, a bound that is one off, a dropped statement, swapped
arguments, another dtype, a value that is set once in front of a loop, a wrong word in a query. Two sources that
compile to the same code are one mutant, and one that compiles to the original code is no mutant.
"""

from __future__ import annotations

import ast
import copy
import difflib
import warnings
from collections.abc import Iterator

from course.teach.exercises.attempt import instructions
from tools.mutants.sql_mutations import sql_mutations

OPERATORS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.FloorDiv: (ast.Mod, ast.Div),
    ast.Mod: (ast.FloorDiv,),
    ast.MatMult: (ast.Mult,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
NAMES = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "maximum": "minimum",
    "amax": "amin",
    "argmax": "argmin",
    "isnan": "isinf",
    "isfinite": "isnan",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "prange": "range",
    "int8": "uint8",
    "uint16": "int16",
    "uint32": "int32",
    "int32": "int64",
    "int64": "int32",
    "float32": "float64",
    "bfloat16": "float16",
    "long": "int",
    "float": "double",
}
MODULES = ("torch", "np", "math", "F", "nn", "tl", "triton_mode")
BODIES = ("body", "orelse", "finalbody")
LOOPS = (ast.For, ast.While)

Slot = tuple[ast.AST, str, int | None]  # a field of a node, and the place in it where the field is a list


def mutations(source: str) -> Iterator[tuple[str, str]]:
    """Yield (what is changed, the changed source) of each mutant, always in the same order."""
    tree = ast.parse(source)
    original = ast.unparse(tree)
    seen = {_compiled(original)}
    for mutant in _mistakes(tree):
        code = _compiled(mutant)
        if code not in seen:
            seen.add(code)
            yield _change(original, mutant), mutant
    assert ast.unparse(tree) == original, "each mistake is taken back"


def _compiled(source: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # such as: 'int' object is not subscriptable
        return repr(instructions(compile(source, "<mutant>", "exec")))


def _change(before: str, after: str) -> str:
    before, after = (text.replace("\\n", "\n") for text in (before, after))  # of a query, which stands in one line
    lines = [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[:1] in "+-"]
    gone, new = ([line[2:].strip() for line in lines if line[0] == sign] for sign in "-+")
    return f"{'; '.join(gone)} -> {'; '.join(new) or 'nothing'}"


def _mistakes(tree: ast.Module) -> Iterator[str]:
    """Yield sources with one mistake each. The tree is changed only while a source is made from it."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    instead = [(slot, new) for slot in _slots(tree) for new in _instead_of(slot, _get(slot))]
    instead += [pair for function in functions for pair in _other_arguments(function)]
    for where, new in instead:
        yield from _with(tree, where, new)
    for body in _bodies(tree):
        yield from _with_other_bodies(tree, body)


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    """List every list of statements that stands in another statement."""
    inner = [getattr(parent, field, None) for parent in ast.walk(tree) for field in BODIES if parent is not tree]
    return [body for body in inner if isinstance(body, list)]


def _with(tree: ast.Module, slot: Slot, new: ast.AST | None) -> Iterator[str]:
    old = _get(slot)
    _set(slot, new)
    yield ast.unparse(tree)
    _set(slot, old)


def _slots(node: ast.AST) -> Iterator[Slot]:
    """Yield every place in the tree where another node could hang, except in a message, which no checker judges."""
    for field, value in ast.iter_fields(node):
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, (ast.Raise, ast.Import, ast.ImportFrom)):
                yield node, field, index
                yield from _slots(child)


def _get(slot: Slot) -> ast.AST:
    node, field, index = slot
    value = getattr(node, field)
    return value if index is None else value[index]


def _set(slot: Slot, new: ast.AST | None) -> None:
    node, field, index = slot
    if index is None:
        setattr(node, field, new)
    else:
        getattr(node, field)[index] = new


def _is_judged(slot: Slot) -> bool:
    """Tell whether the node is mutated: not in an annotation, a message, or zip's strict, which equal lengths hide."""
    parent, field, _ = slot
    is_strict = isinstance(parent, ast.keyword) and parent.arg == "strict"
    return field not in ("annotation", "returns") and not isinstance(parent, ast.JoinedStr) and not is_strict


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))


def _instead_of(slot: Slot, node: ast.AST) -> Iterator[ast.AST | None]:
    parent, field, _ = slot
    if not _is_judged(slot):
        return
    for other in OPERATORS.get(type(node), ()):
        yield other()
    if not _is_read(node):
        return
    yield from _other_expressions(node)
    if field == "test" or (isinstance(parent, ast.comprehension) and field == "ifs"):
        yield ast.UnaryOp(ast.Not(), node)
        yield ast.Constant(True)
    if field == "iter" and not _calls(node, "range", "prange"):
        yield from (_item(ast.List([ast.Starred(node)]), part) for part in (_from(1), _to(-1)))
    if field in ("lower", "upper") and isinstance(parent, ast.Slice):
        yield None
    is_bound = isinstance(parent, ast.Call) and field == "args" and _calls(parent, "range", "prange")
    if is_bound or isinstance(parent, ast.Slice) or (isinstance(parent, ast.Subscript) and field == "slice"):
        if isinstance(node, (ast.Name, ast.BinOp, ast.Attribute, ast.Call)):
            yield from (ast.BinOp(node, sign(), ast.Constant(1)) for sign in (ast.Add, ast.Sub))


def _other_arguments(function: ast.FunctionDef) -> Iterator[tuple[Slot, ast.AST]]:
    """Yield (place, the next argument) for each use of an argument."""
    names = [arg.arg for arg in (*function.args.args, *function.args.kwonlyargs) if arg.arg not in ("self", "cls")]
    after = dict(zip(names, names[1:] + names[:1], strict=True))
    for slot in _slots(function):
        node = _get(slot)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in after:
            yield slot, ast.Name(after[node.id])


def _other_expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(other) for other in (value + 1, value - 1))
        case ast.Constant(value=str(value)):
            yield from map(ast.Constant, sql_mutations(value))
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name])
        case ast.Attribute(value=value, attr=name) if name in NAMES:
            yield ast.Attribute(value, NAMES[name])
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right):
            yield from (left, right)
            if not isinstance(op, (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr)):
                yield ast.BinOp(right, op, left)
        case ast.BoolOp(op=op, values=values):
            for dropped in values:
                left = [value for value in values if value is not dropped]
                yield ast.BoolOp(op, left) if len(left) > 1 else left[0]
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Tuple(elts=[first, second, *rest]):
            yield type(node)([second, first, *rest], ast.Load())
        case ast.Call():
            yield from _other_calls(node)


def _other_calls(call: ast.Call) -> Iterator[ast.expr]:
    """Yield the call with swapped arguments, without one, and the object that it is called on."""
    if len(call.args) > 1:
        first, second, *rest = call.args
        yield ast.Call(call.func, [second, first, *rest], call.keywords)
        yield ast.Call(call.func, call.args[:-1], call.keywords)
    for dropped in call.keywords:
        if dropped.arg != "strict":  # of zip: it changes nothing where the lengths are equal
            yield ast.Call(call.func, call.args, [keyword for keyword in call.keywords if keyword is not dropped])
    if call.args and not isinstance(call.args[0], ast.Starred):
        yield call.args[0]
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) not in MODULES:
        yield call.func.value


def _with_other_bodies(tree: ast.Module, body: list[ast.stmt]) -> Iterator[str]:
    before = list(body)
    for i, statement in enumerate(before):
        if isinstance(statement, (ast.Pass, ast.Import, ast.ImportFrom)) or _is_docstring(statement):
            continue
        for others in _in_place_of(statement):
            body[i : i + 1] = others or ([] if len(before) > 1 else [ast.Pass()])
            yield ast.unparse(tree)
            body[:] = before


def _in_place_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    yield []
    match statement:
        case ast.AugAssign(target=target, op=op, value=value):
            for other in OPERATORS.get(type(op), ()):
                yield [ast.AugAssign(target, other(), value)]
            yield [ast.Assign([target], value, lineno=0)]  # ast.unparse asks for it
        case ast.Break():
            yield [ast.Continue()]
        case ast.Continue():
            yield [ast.Break()]
        case ast.For() | ast.While():
            yield from _hoisted(statement)


def _hoisted(loop: ast.For | ast.While) -> Iterator[list[ast.stmt]]:
    """Yield the loop with one value that each iteration assigns moved before the loop."""
    made_by_loop = _names(loop.target) if isinstance(loop, ast.For) else set()
    for statement in loop.body:
        if isinstance(statement, ast.Assign) and len(loop.body) > 1 and not made_by_loop & _names(statement):
            shorter = copy.copy(loop)
            shorter.body = [other for other in loop.body if other is not statement]
            yield [statement, shorter]


def _names(node: ast.AST) -> set[str]:
    return {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _calls(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _item(value: ast.expr, index: ast.expr) -> ast.expr:
    return ast.Subscript(value, index)


def _from(first: int) -> ast.Slice:
    return ast.Slice(lower=ast.Constant(first))


def _to(stop: int) -> ast.Slice:
    return ast.Slice(upper=ast.Constant(stop))
