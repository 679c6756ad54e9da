"""The house's arrows: which room may import which. Lazy imports and importlib count, and nothing goes in a circle."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

from roseinfer.paths import ROOT

# A room may import those of the rooms below it that are named here; docs/architecture.md draws them.
BASE = {"paths", "arguments", "hardware", "sequence", "blocks"}
MEASURED = {*BASE, "sampling", "models", "kernels", "profiling"}
DRIVEN = {*MEASURED, "stage", "generate", "reference", "engine", "contract"}
SHOWN = {*DRIVEN, "display", "bench"}
ALLOWED: dict[str, set[str]] = {
    "paths": set(),
    "arguments": set(),
    "hardware": set(),
    "sequence": {"arguments"},
    "blocks": {"arguments"},
    "sampling": BASE,
    "kernels": BASE,
    "models": {*BASE, "kernels"},
    "profiling": {*BASE, "kernels", "models"},
    "stage": MEASURED,
    "generate": {*MEASURED, "stage"},
    "reference": {*MEASURED, "stage"},
    "engine": {*MEASURED, "stage", "generate"},
    "contract": {*MEASURED, "stage", "generate", "reference"},
    "display": {*BASE, "profiling"},
    "bench": {*DRIVEN, "display"},
    "posts": SHOWN,
    "doctor": {"paths", "hardware"},
    "teach": {*SHOWN, "posts", "doctor"},
    "cli": {*SHOWN, "posts", "doctor", "tools", "stages"},
    "benchmark_scheduler": {"bench", "models", "profiling", "stage", "arguments", "cli"},
    "__main__": {"cli"},
    "": {"models", "sequence", "kernels"},  # roseinfer/__init__.py: the public names
}
LIBRARY = ROOT / "roseinfer"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}


def room_of(module: str) -> str:
    """The first name below roseinfer; for other packages of this repository, the package."""
    first, *rest = module.split(".")
    return first if first != "roseinfer" else (rest[0] if rest else "")


def imported(module: str, lazy: bool = True) -> set[str]:
    """What a module imports of this repository, as dotted names. lazy: in functions, or by a name as text, too."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8")), lazy):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
        elif lazy and isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= named(node.args[0], package)
    return {name for name in found if name.split(".")[0] in ("roseinfer", "stages", "tools", "tests")}


def nodes(tree: ast.AST, lazy: bool) -> list[ast.AST]:
    """All nodes; without lazy, not those of functions nor those for a type checker alone."""
    if lazy:
        return list(ast.walk(tree))
    found, todo = [], list(ast.iter_child_nodes(tree))
    while todo:
        node = todo.pop()
        checked_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not checked_only and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
            todo += ast.iter_child_nodes(node)
    return found


def named(argument: ast.expr, package: str) -> set[str]:
    """The module that import_module is asked for, as far as it is written there: f"roseinfer.posts.{x}" is posts."""
    text = argument
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return set()
    name = text.value
    return {f"{package}{name}".rstrip(".") if name.startswith(".") else name.rstrip(".")}


@pytest.mark.parametrize("module", MODULES)
def test_arrows_point_down(module):
    room = room_of(module)
    assert room in ALLOWED, f"{module}: a room that this test does not know"
    for target in imported(module):
        assert room_of(target) in ALLOWED[room] | {room}, f"{module} imports {target}"


def test_the_rooms_themselves_have_an_order():
    """What is allowed has no cycle, so no two rooms can come to lean on each other."""
    allowed = {room: rooms - {"stages", "tools"} for room, rooms in ALLOWED.items()}
    list(graphlib.TopologicalSorter(allowed).static_order())  # raises CycleError


def test_modules_that_import_each_other():
    """While modules load. A package stands for its __init__.py."""
    graph = {module: imported(module, lazy=False) & MODULES.keys() - {module} for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_names_as_text_are_seen():
    """import_module with a name that nobody can read here would slip past all of the above."""
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                assert named(node.args[0], module) or module in ASKED_BY_NAME, f"{module}: {ast.unparse(node)}"


# The name of the module is an argument: a lesson's own kernel, of whichever module it comes from.
ASKED_BY_NAME = {"roseinfer.teach.measure.kernel_loads", "roseinfer.teach.exercises"}
