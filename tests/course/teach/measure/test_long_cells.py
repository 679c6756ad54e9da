"""A cell that takes long says so, and an interrupted one says it in one line: in a kernel, as a learner runs it."""

from __future__ import annotations

import os

import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.slow


INSTALL = "from course.teach.measure import long_cells; long_cells.install()"
WAIT = 60  # seconds, for what comes at once on a quiet machine


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A manager and its client, of a learner's kernel and of one that is recorded."""
    record = str(tmp_path_factory.mktemp("record") / "progress.jsonl")
    started = {}
    for who, place in (("learner", record), ("recorder", "off")):
        manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, "ROSEINFER_PROGRESS": place})
        client.execute_interactive(INSTALL, timeout=WAIT)
        started[who] = manager, client
    yield started
    for manager, client in started.values():
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(kernel, code, on_message=lambda message: None) -> list[dict]:
    """The messages that a cell sends."""
    _, client = kernel
    sent = []

    def take(message):
        sent.append(message)
        on_message(message)

    client.execute_interactive(code, timeout=WAIT, output_hook=take)
    return sent


def html_of(messages):
    return [m["content"]["data"]["text/html"] for m in messages if "text/html" in m["content"].get("data", {})]


def test_a_long_cell_counts_its_seconds_and_leaves_nothing(kernels):
    shown = html_of(run(kernels["learner"], "import time; time.sleep(2.6)"))
    assert "running for 1 s" in shown[0] and shown[-1] == ""


def test_a_short_cell_and_a_recorded_one_show_nothing(kernels):
    assert html_of(run(kernels["learner"], "6 * 7")) == []
    assert html_of(run(kernels["recorder"], "import time; time.sleep(1.6)")) == []


def test_an_interrupted_cell_says_so_in_one_line(kernels):
    manager, _ = kernels["learner"]
    deep = "import time\ndef wait(n):\n    wait(n - 1) if n else time.sleep(60)\nwait(40)"
    sent = run(kernels["learner"], deep, lambda m: manager.interrupt_kernel() if "running for" in str(m) else None)
    [error] = [m["content"] for m in sent if m["msg_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert error["traceback"] == ["KeyboardInterrupt: this cell was interrupted. Run it again to start over."]
    assert html_of(sent)[-1] == "" and html_of(run(kernels["learner"], "6 * 7")) == []


def test_another_error_keeps_its_traceback(kernels):
    [error] = [m["content"] for m in run(kernels["learner"], "1 / 0") if m["msg_type"] == "error"]
    assert error["ename"] == "ZeroDivisionError" and len(error["traceback"]) > 1
