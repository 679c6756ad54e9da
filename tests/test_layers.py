"""The house's arrows: which room may import which. Lazy imports and importlib count, and nothing goes in a circle."""

from __future__ import annotations

import ast
import graphlib
from functools import cache
from pathlib import Path

from roseinfer.paths import ROOT

# From the bottom up, as docs/architecture.md draws them: a room imports rooms below its own layer, and no other.
LAYERS = (
    {"paths", "arguments", "hardware"},
    {"documentation", "settings"},
    {"structured_outputs"},
    {"sampling_params"},
    {"sequence", "arrivals", "blocks", "doctor", "drive", "graphs", "overlap"},
    {"kernels", "sampling"},
    {"models"},
    {"profiling"},
    {"stage", "display"},
    {"generate", "reference"},
    {"engine"},
    {"planning", "parallel"},
    {"llm"},
    {"bench", "server", "simulator"},
    {"cli"},
    {"benchmark_scheduler", "__main__"},
    {""},  # roseinfer/__init__.py: the public names
    # The course, which no room of the engine imports.
    {"course.display", "course.contract", "course.own_engine", "course.pages"},
    {"course.posts", "course.contest"},
    {"course.teach"},
    {"course.cli"},
    {"course"},
)
HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}
COMMANDS = {"cli", "benchmark_scheduler", "course.cli"}  # they alone ask for what lies outside by name
PACKAGES = (ROOT / "roseinfer", ROOT / "course")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in [path for package in PACKAGES for path in sorted(package.rglob("*.py"))]}


def room_of(module: str) -> str:
    """Return the first name below roseinfer, the first two of the course's; of other packages, the package."""
    first, *rest = module.split(".")
    if first == "course":
        return ".".join([first, *rest[:1]])
    return first if first != "roseinfer" else (rest[0] if rest else "")


@cache
def nodes(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def calls_import_module(node: ast.AST) -> bool:
    name = node.func if isinstance(node, ast.Call) else None
    return "import_module" in (getattr(name, "attr", None), getattr(name, "id", None))


@cache
def imported(module: str) -> set[str]:
    """What a module imports of this repository, as dotted names: in functions, or by a name as text, too."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in MODULES else base for a in node.names}
        elif isinstance(node, ast.Call) and calls_import_module(node):
            found |= named(node.args[0], package)
    return {name for name in found if name.split(".")[0] in ("roseinfer", "course", "stages", "tools", "tests")}


def named(argument: ast.expr, package: str) -> set[str]:
    """The module that import_module is asked for, as far as it is written there: f"course.posts.{x}" is posts."""
    text = argument
    if isinstance(text, ast.JoinedStr):
        text = text.values[0]
    if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
        return set()
    name = text.value
    return {f"{package}{name}".rstrip(".") if name.startswith(".") else name.rstrip(".")}


def test_arrows_point_down():
    imports = [(module, target) for module in MODULES for target in imported(module)]
    assert [f"{module} imports {target}" for module, target in imports if points_up(module, target)] == []


def points_up(module: str, target: str) -> bool:
    """Whether the module may not import this one."""
    room, other = room_of(module), room_of(target)
    outside = room in COMMANDS and (other == "stages" or other == "course.cli" != room)
    return not (outside or other == room or HEIGHT.get(other, len(LAYERS)) < HEIGHT[room])


def test_every_room_has_its_layer():
    assert {room_of(module) for module in MODULES} - HEIGHT.keys() == set()


def test_display_knows_what_profiling_hands_out_and_no_other_result():
    """Whatever it shows reaches it as Facts, a Trace or numbers, so no room above needs drawing code here."""
    known = {room_of(target) for module in MODULES if room_of(module) == "display" for target in imported(module)}
    assert known <= {"display", "profiling", "arguments"}


def test_no_modules_import_each_other():
    """Not even lazily, nor for a type checker alone. A package stands for its __init__.py."""
    graph = {module: imported(module) & MODULES.keys() - {module} for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())


def test_every_room_is_on_the_page():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    inside = [path for package in PACKAGES for path in package.iterdir()]
    rooms = {path.name for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()}
    shared = {"__init__.py", "__main__.py", "paths.py", "arguments.py", "hardware.py"}
    assert not {room for room in rooms - shared if room.removesuffix(".py") not in page}


def test_names_as_text_are_seen():
    """import_module with a name that is not a literal would slip past all of the above."""
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.Call) and calls_import_module(node):
                assert named(node.args[0], module) or module in ASKED_BY_NAME, f"{module}: {ast.unparse(node)}"


# The name of the module is an argument: a lesson's own kernel, of whichever module it comes from, or the function
# that a new process runs.
ASKED_BY_NAME = {"course.teach.measure.kernel_loads", "course.teach.exercises", "roseinfer.parallel.process"}
