"""Count the mutants of the exercises' solutions that the checkers refuse: `python -m tools.mutants [ID ...]`.

An ID is an exercise, 01.1, or a lesson, 01; without one, all are tried. A mutant is a solution with one mistake in it
(see mutations.py). Its checker refuses it, or tests/course/teach/equivalent_mutants.toml has it as right, with the
reason. Whatever else passes is printed, and the command exits 1: strengthen the checker, or put the mutant on the list.

Each exercise is tried in a process of its own, because a mutant may crash or never end: both count as refused.
"""

from __future__ import annotations

import ast
import faulthandler
import hashlib
import io
import json
import linecache
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import nbformat

from course.contract.time_limit import TookTooLong, time_limit
from course.own_engine import kept as own_engine
from course.teach.exercises.exercise import find
from course.teach.exercises.solutions import parse_solutions
from course.teach.journal import entries as journal
from roseinfer.paths import ROOT
from tools.mutants.mutations import mutations
from tools.solutions import check_cells
from tools.solutions import names as names_of

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

EQUIVALENT = ROOT / "tests/course/teach/equivalent_mutants.toml"
# One thread each, and nothing that is judged is a learner's progress, or kept.
OFF = {journal.PLACE: journal.OFF, own_engine.PLACE: own_engine.OFF}
ALONE = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | OFF
LONGER = 5  # times what the solution takes, and a mutant is thought never to end


@dataclass(frozen=True)
class Mutant:
    """A solution with one mistake. id: the same as long as the changed line is. change: that line, before and after."""

    id: str
    change: str
    source: str


@dataclass(frozen=True)
class Outcome:
    mutant: Mutant
    passed: bool
    said: str


def solutions() -> dict[str, tuple[Path, str]]:
    """Load exercise id -> its notebook, and the source of the solution."""
    found = {}
    for path in sorted((ROOT / "notebooks/solutions").glob("*.py")):
        for exercise_id, source in parse_solutions(path.read_text(encoding="utf-8")).items():
            found[exercise_id] = ROOT / "notebooks" / f"{path.stem}.ipynb", source
    return found


@cache
def mutants(exercise_id: str) -> tuple[Mutant, ...]:
    """Make every mutant of an exercise's solution, always in the same order."""
    times: Counter[str] = Counter()
    found = []
    for change, source in mutations(solutions()[exercise_id][1]):
        times[change] += 1  # a line that stands twice in a solution
        digest = hashlib.sha1(f"{exercise_id} {change} {times[change]}".encode()).hexdigest()
        found.append(Mutant(digest[:8], change, source))
    return tuple(found)


def listed_as_right() -> dict[str, dict[str, dict[str, str]]]:
    """Load exercise id -> mutant id -> {"line": what is changed, "why": why it is right all the same}."""
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))


class Bench:
    """Judges sources as answers to one exercise, each in a fresh copy of the names that its notebook has by then."""

    def __init__(self, exercise_id: str) -> None:
        path, self.solution = solutions()[exercise_id]
        self.exercise_id = exercise_id
        notebook = nbformat.read(path, as_version=4)
        self.call = _call_of_check(notebook, exercise_id)
        sections = {id: source for id, (other, source) in solutions().items() if other == path and id <= exercise_id}
        self.names: dict[str, Any] = {"__name__": "__main__"}
        exec("\n".join(_needed(notebook, "\n".join([*sections.values(), ast.unparse(self.call)]))), self.names)
        for section in list(sections.values())[:-1]:
            self._run(section, self.names)
        self.seconds = 600.0  # for the solution, the first time: it may compile, on a busy machine for minutes

    def set_limit(self) -> None:
        """Set the time limit: a multiple of the solution's time, the first time: a checker may remember an answer."""
        find(self.exercise_id)  # its lesson is imported by now
        started = perf_counter()
        self.require_solution("before its mutants")
        self.seconds = 1 + LONGER * (perf_counter() - started)

    def require_solution(self, when: str) -> None:
        passed, said = self.judge(self.solution)
        if not passed:
            raise SystemExit(f"{when}, the solution is refused: {said}")

    def judge(self, source: str) -> tuple[bool, str]:
        """Judge a source: return whether it passes, and the checker's message."""
        names = dict(self.names)
        faulthandler.dump_traceback_later(self.seconds + 10, exit=True)  # for what Python cannot stop
        try:
            with time_limit(self.seconds), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                self._run(source, names)
                verdict = eval(compile(ast.Expression(self.call), "<check>", "eval"), names)
        except TookTooLong:
            return False, f"stopped after {self.seconds:.0f} s"
        except Exception as error:
            return False, f"cannot be run: {type(error).__name__}: {error}"
        finally:
            faulthandler.cancel_dump_traceback_later()
        return verdict.outcome == "PASS", str(verdict)

    def _run(self, source: str, names: dict[str, Any]) -> None:
        """Run the source where inspect finds its lines, which Triton and Numba need."""
        place = f"<{self.exercise_id} {hashlib.sha1(source.encode()).hexdigest()}>"
        linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
        exec(compile(source, place, "exec"), names)


def _call_of_check(notebook: nbformat.NotebookNode, exercise_id: str) -> ast.Call:
    [cell] = check_cells(notebook, exercise_id)
    calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
    return next(call for call in calls if ast.unparse(call.func) == "teach.check")


def _needed(notebook: nbformat.NotebookNode, source: str) -> list[str]:
    """List the notebook's statements that define what the source uses, and what those use, in its order."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and "exercise" not in cell.metadata]
    statements = [ast.unparse(statement) for cell in cells for statement in ast.parse(cell.source).body]
    defined_by = {name: i for i, statement in reversed([*enumerate(statements)]) for name in names_of(statement)[1]}
    needed: set[int] = set()
    to_look_at = [source]
    while to_look_at:
        used, _ = names_of(to_look_at.pop())
        more = {defined_by[name] for name in used if name in defined_by} - needed
        to_look_at += [statements[i] for i in more]
        needed |= more
    return [statements[i] for i in sorted(needed)]


def sample(exercise_id: str, size: int | None) -> list[Mutant]:
    """Return the same `size` mutants each time, from all over the solution; all of them for None."""
    return sorted(mutants(exercise_id), key=lambda mutant: mutant.id)[:size]


def outcomes(exercise_id: str, size: int | None = None) -> Iterator[Outcome]:
    """Judge each mutant of the sample, in a process that is started again if a mutant ends it."""
    todo = sample(exercise_id, size)
    while todo:
        command = [sys.executable, "-m", "tools.mutants", "--judge", exercise_id, *(mutant.id for mutant in todo)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        judge = subprocess.Popen(command, cwd=ROOT, env=ALONE, **pipes)
        with judge:
            for line in judge.stdout:
                answer = json.loads(line)
                if isinstance(answer, dict):
                    raise SystemExit(f"{exercise_id}: {answer['bench']}")
                yield Outcome(todo.pop(0), *answer)
        if judge.returncode and todo:
            yield Outcome(todo.pop(0), False, f"ends the process: {judge.returncode}")


def _judge(exercise_id: str, ids: list[str]) -> None:
    """Print a line of JSON for each of these mutants: a list, or a dict that says why they cannot be judged.

    The solution is judged after them, too: they may have spoiled what answers share, such as a model.
    """
    with telling_failures():
        bench = Bench(exercise_id)
        bench.set_limit()
    by_id = {mutant.id: mutant for mutant in mutants(exercise_id)}
    for mutant_id in ids:
        print(json.dumps(bench.judge(by_id[mutant_id].source)), flush=True)
    with telling_failures():
        bench.require_solution("after its mutants")


@contextmanager
def telling_failures() -> Iterator[None]:
    """Print a failure inside, which is no mutant's, for the process that waits for answers, and raise it again."""
    try:
        yield
    except (SystemExit, Exception) as error:
        print(json.dumps({"bench": str(error)}), flush=True)
        raise


def main(arguments: list[str] | None = None) -> int:
    parser = ArgumentParser(prog="tools.mutants", description="Judge the mutants of the exercises' solutions.")
    parser.add_argument("id", nargs="*", help="an exercise such as 01.1, or a lesson such as 01 (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants of each exercise, the same ones each time")
    parser.add_argument("--verbose", action="store_true", help="each mutant, with what is said to it")
    parser.add_argument("--judge", nargs="+", metavar="ID", help="exercise and mutants; prints a line of JSON for each")
    options = parser.parse_args(arguments)
    if options.judge:
        exercise_id, *ids = options.judge
        _judge(exercise_id, ids)
        return 0
    chosen = [known for known in solutions() if not options.id or known in options.id or known[:2] in options.id]
    if unknown := [name for name in options.id if not any(name in (known, known[:2]) for known in solutions())]:
        parser.error(f"no such exercise: {', '.join(unknown)}")
    right, survivors = listed_as_right(), 0
    for exercise_id in chosen:
        listed = right.get(exercise_id, {})
        found = list(outcomes(exercise_id, options.sample))
        passed = [outcome for outcome in found if outcome.passed]
        survived = [outcome for outcome in passed if outcome.mutant.id not in listed]
        print(
            f"{exercise_id}: {len(found)} mutants, {len(found) - len(passed)} refused, "
            f"{len(passed) - len(survived)} listed as right, {len(survived)} survive",
            flush=True,
        )
        for outcome in found if options.verbose else survived:
            print(f"  {outcome.mutant.id} {outcome.mutant.change}")
            if options.verbose:
                print(f"           {outcome.said}")
        survivors += len(survived)
    return 1 if survivors else 0
