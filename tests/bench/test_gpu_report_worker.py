"""Parts of a GPU report in a process of their own: one that breaks, dies or hangs ends only itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_parts import PARTS
from small_reports import COURSE, CPU, PLAN

from roseinfer.bench.gpu_report.context import Context, PartFailed
from roseinfer.bench.gpu_report.worker import Worker


@pytest.fixture
def context() -> Context:
    said = []
    context = Context(COURSE, PLAN, CPU, Path(), None, said.append)
    context.said = said
    return context


def test_what_breaks_leaves_a_fresh_process_to_the_next_part(context: Context):
    processes = []
    with Worker(context, PARTS) as worker:
        for part, wrong in (
            ("fine", None), ("raises", "^IndexError: an illegal access$"),
            ("dies", "^its process ended with exit status 7$"), ("fine", None),
        ):  # fmt: skip
            rows = worker.rows_of(part)
            processes.append(next(rows)["process"])
            if wrong is None:
                (row,) = rows
                assert row["seconds"] == PLAN.seconds and 0 < row["left"] <= context.seconds_left() + 60
            else:
                with pytest.raises(PartFailed, match=wrong):
                    next(rows)
        os.kill(processes[-1], signal.SIGKILL)
        while worker._process.is_alive():
            time.sleep(0.01)
        processes.append(next(worker.rows_of("fine"))["process"])
    first, same, second, third, last = processes
    assert first == same and len({os.getpid(), first, second, third, last}) == 5
    assert context.failures == ["a check"] * 2 and context.notes == ["a note"] * 2
    assert context.said == ["working", "a note", "failed: a check"] * 2 + ["working"]


def test_a_part_that_hangs_is_ended(context: Context):
    ended = []
    worker = Worker(context, PARTS)
    context.plan = SimpleNamespace(silence_seconds=0.01)
    worker._connection, theirs = multiprocessing.Pipe()
    worker._process = SimpleNamespace(
        is_alive=lambda: True, kill=lambda: ended.append("killed"), join=lambda: ended.append("waited for")
    )
    with pytest.raises(PartFailed, match="^said nothing for 0 s$"):
        next(worker.rows_of("fine"))
    assert theirs.recv() == "fine" and ended == ["killed", "waited for"] and worker._process is None
