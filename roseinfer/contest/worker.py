"""The process of an entry: it loads the model and the entry, then runs the requests that it is sent.

It reads lines of JSON, and writes one line of JSON for each. It never has the right tokens: the judge makes them later,
in another process. Whatever an entry prints goes elsewhere (see contender.py).
"""

from __future__ import annotations

import json
import os
import resource
import traceback
from pathlib import Path
from typing import Any

from roseinfer.engine.engine import Engine
from roseinfer.models import Model, load_model
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.stage import Stage

from .entry import NoEntry, kind_of, make_engine, steps_of
from .entry_file import EntryFile, class_in
from .workload import SPEC

OUT_OF_MEMORY = ("allocate memory", "not enough memory")  # in the messages of torch
READ_FD, WRITE_FD = "CONTEST_READ_FD", "CONTEST_WRITE_FD"


def main() -> None:
    inbox = os.fdopen(int(os.environ.pop(READ_FD)), encoding="utf-8")
    outbox = os.fdopen(int(os.environ.pop(WRITE_FD)), "w", encoding="utf-8")
    told = json.loads(inbox.readline())
    file = EntryFile(**told["file"]) if told["file"] else None
    model = load_model(SPEC, device="cpu")
    limit_memory(told["memory_bytes"])
    made, answer = loaded(file, model)
    say(outbox, answer)
    while made and (line := inbox.readline()):
        say(outbox, answered(made, json.loads(line), file))


def loaded(file: EntryFile | None, model: Model) -> tuple[Engine | Stage | None, dict[str, Any]]:
    """What runs requests, and what to say about it."""
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


def answered(made: Engine | Stage, requests: dict[str, Any], file: EntryFile | None) -> dict[str, Any]:
    """The new tokens of each request, in the order in which they were sent."""
    params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in requests["max_tokens"]]
    seqs = [Sequence(prompt, one) for prompt, one in zip(requests["prompts"], params, strict=True)]
    try:
        for _ in steps_of(made, list(seqs)):
            pass
        return {"tokens": [seq.output_ids for seq in seqs]}
    except BaseException as error:
        return {"failed": described(error, file)}


def described(error: BaseException, file: EntryFile | None) -> str:
    """One line: what was raised, and the innermost line of the entry's file that led to it."""
    text = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(part in text for part in OUT_OF_MEMORY):
        text = "takes more memory than is allowed"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if file and frame.filename == file.path]
    where = f", in line {lines[-1]} of {Path(file.path).name}" if file and lines else ""
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def limit_memory(num_bytes: int) -> None:
    """Allow that many bytes of address space beyond what the process has now. Only Linux says how many those are."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        now = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + num_bytes, now + num_bytes))


def say(outbox: Any, message: dict[str, Any]) -> None:
    print(json.dumps(message), file=outbox, flush=True)
