"""Exercises in notebooks and their answers in notebooks/solutions/<same stem>.py: finds and checks both.

In a notebook: the stub's cell has the tag `exercise` and the metadata {"exercise": "01.2"}; a later cell calls
teach.check("01.2", ...). How a file of solutions is written, course/teach/exercises/solutions.py tells.
"""

from __future__ import annotations

import ast
import copy
import re
from symtable import SymbolTable, symtable

from nbformat import NotebookNode

from course.teach.exercises.exercise import find
from tools.notebooks import plain_text

MAY_BIND = (ast.If, ast.For, ast.While, ast.Try, ast.Match)  # statements that may bind a name, or not


def stubs(nb: NotebookNode) -> dict[str, NotebookNode]:
    """Find exercise id -> the cell that the learner fills in."""
    tagged = [cell for cell in nb.cells if "exercise" in cell.metadata.get("tags", [])]
    return {str(cell.metadata.get("exercise")): cell for cell in tagged}


def check_cells(nb: NotebookNode, exercise_id: str) -> list[NotebookNode]:
    call = re.compile(rf"""\bcheck\(\s*["']{re.escape(exercise_id)}["']""")
    return [cell for cell in nb.cells if cell.cell_type == "code" and call.search(cell.source)]


def fill(nb: NotebookNode, solutions: dict[str, str]) -> NotebookNode:
    """Copy the notebook with the solutions in place of the stubs."""
    solved = copy.deepcopy(nb)
    for exercise_id, cell in stubs(solved).items():
        cell.source = solutions[exercise_id]
    return solved


def reached(solved: NotebookNode) -> list[int]:
    """Find the cells to run again for the solutions of a filled notebook, once all have run with the stubs.

    These are the solutions, and in order the cells that read a name which an earlier one of these cells binds, or a
    part of which it assigns. If such a cell reads a name that several cells bind, the last binding before it is run
    again, too: the name may have another's value by now. Not found are a change by a method's call, and a function that
    calls what is bound after it.
    """
    cells = {number: names(cell.source) for number, cell in enumerate(solved.cells) if cell.cell_type == "code"}
    solutions = list(map(id, stubs(solved).values()))
    changed: set[str] = set()
    again = set()
    for number, (read, written) in cells.items():
        if id(solved.cells[number]) in solutions or read & changed:
            changed |= written
            again.add(number)
    todo = list(again)
    while todo:
        rebinding = _rebinding(cells, todo.pop()) - again
        again |= rebinding
        todo += rebinding
    return sorted(again)


def _rebinding(cells: dict[int, tuple[set[str], set[str]]], number: int) -> set[int]:
    """Find the last cells before this one that bind names which it reads, where several cells bind the same name."""
    found = set()
    for name in cells[number][0]:
        binding = [other for other, (_, written) in cells.items() if name in written]
        before = [other for other in binding if other < number]
        if len(binding) > 1 and before:
            found.add(before[-1])
    return found


def names(source: str) -> tuple[set[str], set[str]]:
    """Collect the global names that a cell may read from earlier cells, and those that it binds or partly assigns."""
    read: set[str] = set()
    written: set[str] = set()
    own: set[str] = set()  # surely bound by the statements so far
    for statement in ast.parse(source).body:
        scope = symtable(ast.unparse(OwnScopes().visit(copy.deepcopy(statement))), "cell", "exec")
        bound = {name.get_name() for name in scope.get_symbols() if name.is_assigned() or name.is_imported()}
        used = {name.get_name() for name in scope.get_symbols() if name.is_referenced()}
        used |= set().union(*map(_globals_read, scope.get_children()))
        augmented = {node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign)}
        used |= bound & {target.id for target in augmented if isinstance(target, ast.Name)}
        read |= used - own
        written |= bound | _partly_assigned(statement) & used
        if not isinstance(statement, MAY_BIND):
            own |= bound
    return read, written


class OwnScopes(ast.NodeTransformer):
    """Turns comprehensions into generator expressions, which have a scope of their own on every Python.

    They read and bind the same names. Since 3.12 the variables of a comprehension are listed with those of the code
    around it.
    """

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.GeneratorExp:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _globals_read(scope: SymbolTable) -> set[str]:
    """Collect the global names that a function, a class or a comprehension reads, inner ones included."""
    own = {name.get_name() for name in scope.get_symbols() if name.is_global() and name.is_referenced()}
    return own.union(*map(_globals_read, scope.get_children()))


def _partly_assigned(statement: ast.stmt) -> set[str]:
    """Find the names of which a statement assigns a part: a and b of `a[0] = b.c = 1`."""
    parts = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute | ast.Subscript)]
    wholes = [node for part in parts if isinstance(part.ctx, ast.Store) for node in ast.walk(part.value)]
    return {node.id for node in wholes if isinstance(node, ast.Name)}


def find_problems(nb: NotebookNode, solutions: dict[str, str]) -> list[str]:
    """List what does not fit, without running anything; empty if all is well."""
    cells = stubs(nb)
    problems = [f"solution {extra} belongs to no cell tagged exercise" for extra in solutions if extra not in cells]
    tagged = sum("exercise" in cell.metadata.get("tags", []) for cell in nb.cells)
    if tagged != len(cells):
        problems.append(f"{tagged} cells are tagged exercise, with {len(cells)} different ids: {', '.join(cells)}")
    problems += [
        f"a cell has the metadata exercise={cell.metadata['exercise']} but not the tag"
        for cell in nb.cells
        if "exercise" in cell.metadata and "exercise" not in cell.metadata.get("tags", [])
    ]
    for exercise_id, cell in cells.items():
        problems += [f"{exercise_id}: {p}" for p in _problems_of(nb, exercise_id, cell, solutions.get(exercise_id))]
    return problems


def _problems_of(nb: NotebookNode, exercise_id: str, stub: NotebookNode, solution: str | None) -> list[str]:
    problems = []
    try:
        handed_out = find(exercise_id).stub  # an Exercise without three hints cannot be made
    except ValueError as error:
        problems.append(str(error))
    else:
        if ast.dump(ast.parse(handed_out)) != ast.dump(ast.parse(stub.source)):
            problems.append("the exercise keeps another stub than the cell has, and would judge an untouched one")
    checks = check_cells(nb, exercise_id)
    if not checks:
        problems.append("no cell calls check for it")
    elif any(plain_text(cell) != [f"{exercise_id} not attempted"] for cell in checks):
        recorded = [text for cell in checks for text in plain_text(cell)]
        problems.append(f"the unsolved notebook should record `{exercise_id} not attempted`, it has {recorded}")
    if solution is None:
        return [*problems, "no solution"]
    missing = names(stub.source)[1] - names(solution)[1]
    return problems + [f"the solution does not define {name}" for name in sorted(missing)]
