"""record_rung: what each program of a rung's kernel loads and stores, from a run in Triton's interpreter.

A compiled kernel tells nothing of the kind, so where kernels are compiled a child process interprets.
"""

from __future__ import annotations

import inspect
import linecache
import os
import pickle
import subprocess
import sys
import textwrap
from functools import cache
from typing import Any

from roseinfer.kernels import triton_mode

from ..measure.kernel_loads import plain_function
from .arena import Arena
from .rungs import RUNGS, Case, find_rung
from .watch import Record, WrongAccess, recorded

HEADER = "from roseinfer import triton_mode\ntl = triton_mode.language()\n"  # what the notebook's set-up gives a kernel
PLACE = "<a kernel of a notebook>"


def record_rung(rung_id: str, *case: Any, kernel: Any = None) -> Record:
    """Record the launch of a rung's kernel. case: its sizes, by default those of the picture. kernel: yours, by default
    the course's.

    Raises ValueError for an unknown rung, and for a kernel with an access that is wrong: teach.check names the mistake.
    """
    rung = find_rung(rung_id)
    triton_mode.require_triton()
    case = case or rung.shown
    try:
        if triton_mode.MODE == "interpret":
            return record(rung_id, case, rung.kernel if kernel is None else kernel)
        return _record_in_child(rung_id, case, kernel)
    except WrongAccess as error:
        raise ValueError(f"kernel must pass teach.check({rung_id!r}, ...) to be drawn; {error}") from None


def record(rung_id: str, case: Case, kernel: Any) -> Record:
    """The same in this process, which must interpret kernels. Raises WrongAccess."""
    launch = find_rung(rung_id).launch(*case)
    arena = Arena(launch.tensors)
    try:
        with recorded(arena, launch.programs) as found:
            launch.run(kernel, arena)
    except Exception as error:
        if isinstance(error.__cause__, WrongAccess):  # inside of what the interpreter raises
            raise error.__cause__ from None
        raise
    return found


@cache
def _shown_records() -> dict[str, Record | str]:
    """The records of all pictures of the course's kernels, from one child: it takes seconds to start."""
    requests: list[tuple[str, Case, str | None]] = [(rung.id, rung.shown, None) for rung in RUNGS.values()]
    return dict(zip(RUNGS, _ask_child(requests), strict=True))


def _record_in_child(rung_id: str, case: Case, kernel: Any) -> Record:
    if kernel is None and case == RUNGS[rung_id].shown:
        answer = _shown_records()[rung_id]
    else:
        source = None if kernel is None else textwrap.dedent(inspect.getsource(plain_function(kernel)))
        [answer] = _ask_child([(rung_id, case, source)])
    if isinstance(answer, str):
        raise WrongAccess(answer)
    return answer


def _ask_child(requests: list[tuple[str, Case, str | None]]) -> list[Record | str]:
    """For each request the record, or what is wrong with an access."""
    environment = os.environ | {triton_mode.VARIABLE: "interpret"}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=pickle.dumps(requests), stdout=subprocess.PIPE, env=environment, check=True)
    answers: list[Record | str] = pickle.loads(done.stdout)
    return answers


def _made_from(source: str) -> Any:
    """The kernel that a source defines; Triton finds its lines in linecache."""
    source = HEADER + source
    linecache.cache[PLACE] = (len(source), None, source.splitlines(keepends=True), PLACE)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, PLACE, "exec"), names)
    return [value for value in names.values() if isinstance(value, triton_mode.InterpretedKernel)][-1]


def main() -> None:
    """The child's side: pickled requests on stdin, pickled answers on stdout."""
    answers: list[Record | str] = []
    for rung_id, case, source in pickle.load(sys.stdin.buffer):
        kernel = RUNGS[rung_id].kernel if source is None else _made_from(source)
        try:
            answers.append(record(rung_id, case, kernel))
        except WrongAccess as error:
            answers.append(str(error))
    sys.stdout.buffer.write(pickle.dumps(answers))


if __name__ == "__main__":
    main()
