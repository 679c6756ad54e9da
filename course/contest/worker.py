"""The process of an entry: it loads the model and the entry, then runs the requests that it is sent.

It reads and writes lines of JSON. It never has the right tokens: the judge makes them later, in another process.
Whatever an entry prints goes nowhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import IO, Any

from roseinfer.engine.engine import Engine
from roseinfer.models import Model, load_model
from roseinfer.stage import Stage

from .bad_answer import BadAnswer
from .entry import NoEntry, kind_of, make_engine
from .entry_file import EntryFile, class_in
from .library import changed_since, marks_of_library
from .places import Lengths, run_in_places
from .workload import SPEC

OUT_OF_MEMORY = ("allocate memory", "not enough memory")  # in the messages of torch
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def main() -> None:
    if sys.platform == "linux":  # also when the contest is ended by SIGKILL, and this process is stopped
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    inbox, outbox = own_pipes()
    told = json.loads(inbox.readline())
    file = EntryFile(**told["file"]) if told["file"] else None
    model = load_model(SPEC, device="cpu")
    limit_memory(told["memory_bytes"])
    before = marks_of_library()
    made, answer = loaded(file, model)
    say(outbox, answer)
    while made and (line := inbox.readline()):
        lengths = json.loads(line)["lengths"]
        say(outbox, run_once(made, lengths, inbox, outbox, file) if lengths else {"changed": changed_since(before)})


def own_pipes() -> tuple[IO[str], IO[str]]:
    """Return files for what is asked and answered. For an entry, stdin is empty, and stdout goes nowhere."""
    inbox, outbox = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    return inbox, outbox


def loaded(file: EntryFile | None, model: Model) -> tuple[Engine | Stage | None, dict[str, Any]]:
    """Execute the file. Return what runs its requests, None if that failed, and the answer for the judge."""
    try:
        entry = class_in(file) if file else None
        kind = kind_of(entry).__name__ if entry else ""
    except NoEntry as error:
        return None, {"invalid": str(error)}
    except BaseException as error:  # SystemExit, too
        return None, {"failed": described(error, file)}
    try:
        return make_engine(entry, model), {"ready": entry.__name__ if entry else "baseline", "kind": kind}
    except BaseException as error:
        return None, {"failed": described(error, file)}


def run_once(
    made: Engine | Stage, lengths: list[Lengths], inbox: Any, outbox: Any, file: EntryFile | None
) -> dict[str, Any]:
    """Run requests whose prompts come when they are asked for. Tokens go out as soon as a request has all of them."""

    def hand_over(ended: list[tuple[int, list[int]]], begun: list[int]) -> list[list[int]]:
        say(outbox, {"ended": ended, "begun": begun})
        return json.loads(inbox.readline())["prompts"] if begun else []

    try:
        for _ in run_in_places(made, lengths, hand_over):
            pass
        return {"done": True}
    except BaseException as error:
        return {"failed": described(error, file)}


def described(error: BaseException, file: EntryFile | None) -> str:
    """Describe an error in one line: what was raised, and the line of the entry's file that led to it."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(part in text for part in OUT_OF_MEMORY):
        text = "takes more memory than is allowed"
    line = line_of(error, file) if file else None
    where = f", in line {line} of {Path(file.path).name}" if file and line else ""
    if isinstance(error, BadAnswer):
        return f"{text}{where}"
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def line_of(error: BaseException, file: EntryFile) -> int | None:
    """Find the line of the entry's file that led to an error: the innermost one in the traceback.

    If there is none, it is the line where the method that returned an unusable value begins, or else the entry's class.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if lines := [frame.lineno for frame in frames if frame.filename == file.path]:
        return lines[-1]
    code = error.code if isinstance(error, BadAnswer) else None
    if code and code.co_filename == file.path:
        return code.co_firstlineno
    return file.last_class_line


def limit_memory(num_bytes: int) -> None:
    """Allow that many bytes of address space beyond what the process has now. Only Linux says how many those are."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        now = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, now + num_bytes))


def say(outbox: Any, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=outbox, flush=True)
