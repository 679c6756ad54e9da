"""A cell that takes long says so, and an interrupted one says it in one line: in a kernel, as a learner runs it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from jupyter_client.manager import start_new_kernel

from course.teach.measure import long_cells, progress_bar

pytestmark = pytest.mark.slow


INSTALL = "from course.teach.measure import long_cells; long_cells.install()"
WAIT = 60  # seconds, for what comes at once on a quiet machine


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A manager and its client, of a learner's kernel."""
    record = str(tmp_path_factory.mktemp("record") / "progress.jsonl")
    manager, client = start_new_kernel(kernel_name="python3", env={**os.environ, "ROSEINFER_PROGRESS": record})
    client.execute_interactive(INSTALL, timeout=WAIT)
    yield manager, client
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


def test_a_long_cell_counts_its_seconds_and_leaves_nothing(kernel):
    shown = html_of(run(kernel, "import time; time.sleep(2.6)"))
    assert "running for 1 s" in shown[0] and shown[-1] == ""


def test_a_short_cell_shows_nothing(kernel):
    assert html_of(run(kernel, "6 * 7")) == []


def test_in_a_kernel_that_records_nothing_is_installed(monkeypatch):
    monkeypatch.setenv("ROSEINFER_PROGRESS", "off")
    monkeypatch.setattr(progress_bar, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(long_cells, "get_ipython", lambda: pytest.fail("a recorded cell counts no seconds"))
    long_cells.install()


def test_an_interrupted_cell_says_so_in_one_line(kernel):
    manager, _ = kernel
    deep = "import time\ndef wait(n):\n    wait(n - 1) if n else time.sleep(60)\nwait(40)"
    once = iter([manager.interrupt_kernel])  # a busy machine shows the sign again before the cell has ended
    sent = run(kernel, deep, lambda m: next(once, str)() if "running for" in str(m) else None)
    [error] = [m["content"] for m in sent if m["msg_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt"
    assert error["traceback"] == ["KeyboardInterrupt: this cell was interrupted. Run it again to start over."]
    assert html_of(sent)[-1] == "" and html_of(run(kernel, "6 * 7")) == []


def test_another_error_keeps_its_traceback(kernel):
    [error] = [m["content"] for m in run(kernel, "1 / 0") if m["msg_type"] == "error"]
    assert error["ename"] == "ZeroDivisionError" and len(error["traceback"]) > 1
