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
from .rungs import RUNGS, Case, find_rung
from .watch import Record, WrongAccess, run_recorded

HEADER = "from roseinfer import triton_mode\ntl = triton_mode.language()\n"  # what the notebook's set-up gives a kernel
PLACE = "<a kernel of a notebook>"


class NotRecorded(Exception):
    """A kernel did not get to its end; the message says why."""


def record_rung(rung_id: str, *case: Any, kernel: Any = None) -> Record:
    """Record the launch of a rung's kernel.

    case: its sizes, by default those of the picture. kernel: yours, by default the course's. Raises ValueError for an
    unknown rung, and for a launch that raises or has an access that is wrong.
    """
    rung = find_rung(rung_id)
    triton_mode.require_triton()
    case = case or rung.shown
    if kernel is not None and plain_function(kernel) is kernel:
        raise ValueError(f"kernel must be decorated with @triton_mode.jit, got {type(kernel).__name__} {kernel!r:.40}")
    try:
        if triton_mode.MODE == "interpret":
            return record(rung_id, case, rung.kernel if kernel is None else kernel)
        return _record_in_child(rung_id, case, kernel)
    except NotRecorded as error:
        raise ValueError(f"kernel cannot be launched as one of {rung_id}: {error}") from error.__cause__


def record(rung_id: str, case: Case, kernel: Any) -> Record:
    """Record a rung's launch in this process, which must interpret kernels. Raises NotRecorded."""
    try:
        return run_recorded(find_rung(rung_id).launch(*case), kernel)[0]
    except Exception as error:
        said = str(error) if isinstance(error, WrongAccess) else f"it raised {type(error).__name__}: {error}"
        raise NotRecorded(said) from error


@cache
def _shown_records() -> dict[str, Record | str]:
    """Record all pictures of the course's kernels in one child process, which takes seconds to start."""
    requests: list[tuple[str, Case, str | None]] = [(rung.id, rung.shown, None) for rung in RUNGS.values()]
    return dict(zip(RUNGS, _ask_child(requests), strict=True))


def _record_in_child(rung_id: str, case: Case, kernel: Any) -> Record:
    if kernel is None and case == RUNGS[rung_id].shown:
        answer = _shown_records()[rung_id]
    else:
        source = None if kernel is None else textwrap.dedent(inspect.getsource(plain_function(kernel)))
        [answer] = _ask_child([(rung_id, case, source)])
    if isinstance(answer, str):
        raise NotRecorded(answer)
    return answer


def _ask_child(requests: list[tuple[str, Case, str | None]]) -> list[Record | str]:
    """Ask a child process for the record of each request, or for why there is none."""
    environment = os.environ | {triton_mode.VARIABLE: "interpret"}
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=pickle.dumps(requests), stdout=subprocess.PIPE, env=environment, check=True)
    answers: list[Record | str] = pickle.loads(done.stdout)
    return answers


def _made_from(source: str) -> Any:
    """Make the kernel that a source defines; Triton finds its lines in linecache."""
    source = HEADER + source
    linecache.cache[PLACE] = (len(source), None, source.splitlines(keepends=True), PLACE)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, PLACE, "exec"), names)
    return [value for value in names.values() if isinstance(value, triton_mode.InterpretedKernel)][-1]


def main() -> None:
    """Answer as the child process: read pickled requests from stdin, and write pickled answers to stdout."""
    answers: list[Record | str] = []
    for rung_id, case, source in pickle.load(sys.stdin.buffer):
        kernel = RUNGS[rung_id].kernel if source is None else _made_from(source)
        try:
            answers.append(record(rung_id, case, kernel))
        except NotRecorded as error:
            answers.append(str(error))
    sys.stdout.buffer.write(pickle.dumps(answers))


if __name__ == "__main__":
    main()
