"""JupyterLab in a real browser: the server by the README's command, pages by the Chromium that the system has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.reader import NotJSONError

from roseinfer.paths import ROOT

SCRATCH = ROOT / "build" / "browser"  # copies of notebooks and screenshots; git ignores build/
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SETTLED_SECONDS = 3  # a kernel that has been idle for so long has nothing queued


def chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


class Lab:
    """A running server. Every call waits at most `deadline` seconds, and fails with what it waited for."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str):
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
            return json.load(answer)

    def session(self, path: str) -> dict | None:
        return next((session for session in self.get("/api/sessions") if session["path"] == path), None)

    def wait_until_settled(self, path: str, deadline: float = 240) -> None:
        """Until the kernel of that notebook has been idle for a while."""
        idle_since, end = None, time.monotonic() + deadline
        while time.monotonic() < end:
            session = self.session(path)
            state = session["kernel"]["execution_state"] if session else "none"
            now = time.monotonic()
            idle_since = (idle_since or now) if state == "idle" else None
            if idle_since and now - idle_since > SETTLED_SECONDS:
                return
            time.sleep(0.2)
        raise AssertionError(f"{path}: the kernel was still {state} after {deadline} s")

    def wait_until_busy(self, path: str, patience: float = 8) -> None:
        """Until the notebook's kernel gets to work, or for so many seconds."""
        end = time.monotonic() + patience
        while time.monotonic() < end:
            session = self.session(path)
            if session and session["kernel"]["execution_state"] == "busy":
                return
            time.sleep(0.05)

    def shut_down(self, path: str) -> None:
        """End the notebook's kernel, so that the next one has the memory and the cores."""
        if session := self.session(path):
            request = urllib.request.Request(f"{self.url}/api/sessions/{session['id']}", method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()


@contextmanager
def running_lab() -> Iterator[Lab]:
    """`make lab` on a free port of this machine, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = f"--no-browser --port {port} --ServerApp.port_retries=0 --IdentityProvider.token=''"
    arguments += " --ServerApp.disable_check_xsrf=True"  # for shut_down, which comes from no page
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
    environment.pop("PYTEST_CURRENT_TEST", None)
    environment.pop("ROSEINFER_TRITON", None)  # a learner has none
    SCRATCH.mkdir(parents=True, exist_ok=True)
    own = tempfile.TemporaryDirectory(prefix="roseinfer-lab-")  # the learner's record, theme and workspaces stay theirs
    environment |= {
        "ROSEINFER_PROGRESS": f"{own.name}/progress.jsonl", "JUPYTERLAB_SETTINGS_DIR": f"{own.name}/settings",
        "JUPYTERLAB_WORKSPACES_DIR": f"{own.name}/workspaces",
    }  # fmt: skip
    with own, (SCRATCH / f"lab-{port}.log").open("w") as log:
        server = subprocess.Popen(
            ["make", "lab", f"LAB_ARGS={arguments}"], cwd=ROOT, env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            lab = Lab(port)
            _wait_for(lab, server, Path(log.name))
            yield lab
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)


def _wait_for(lab: Lab, server: subprocess.Popen, log: Path, deadline: float = 120) -> None:
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            lab.get("/api/status")
            return
        except OSError:
            time.sleep(0.3)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def served_as(path: Path) -> str:
    """The path that the server knows a notebook by."""
    return path.relative_to(ROOT).as_posix()


def open_notebook(page, lab: Lab, path: Path) -> None:
    """Open it in an empty workspace and wait for its kernel."""
    page.goto(f"{lab.url}/lab/tree/{served_as(path)}?reset", wait_until="domcontentloaded")
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached", timeout=90_000)


def menu(page, name: str, entry: str) -> None:
    page.click(f'.lm-MenuBar-itemLabel:text-is("{name}")')
    page.click(f'.lm-Menu-itemLabel:text-is("{entry}")')


def run_all(page, lab: Lab, path: Path, deadline: float = 240) -> NotebookNode:
    """Open it, Run > Run All Cells; the notebook as saved once every cell has run, or one has failed."""
    open_notebook(page, lab, path)
    name, end = served_as(path), time.monotonic() + deadline
    ran: list[NotebookNode] = []
    while True:
        if not ran:  # a page that is still building itself forgets the click
            menu(page, "Run", "Run All Cells")
            lab.wait_until_busy(name)
        lab.wait_until_settled(name, end - time.monotonic())
        notebook = save(page, path)
        ran = [cell for cell in code_cells(notebook) if cell.execution_count]
        if errors_of(notebook) or len(ran) == len(code_cells(notebook)):
            return notebook


def save(page, path: Path) -> NotebookNode:
    """Save with the keyboard's shortcut; the notebook as it is then on disk."""
    before, end = path.stat().st_mtime_ns, time.monotonic() + 30
    page.keyboard.press("Control+s")
    while True:
        assert time.monotonic() < end, f"{path.name} was not saved"
        time.sleep(0.1)
        if path.stat().st_mtime_ns != before:
            with suppress(NotJSONError):  # half written
                return nbformat.read(path, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def errors_of(notebook: NotebookNode) -> list[str]:
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [f"{output.ename}: {output.evalue}" for output in outputs if output.output_type == "error"]


def scratch_copy(name: str) -> Path:
    """A copy of one of the course's notebooks without outputs, for the browser to run and save."""
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return scratch_notebook(name, notebook)


def scratch_notebook(name: str, notebook: NotebookNode) -> Path:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    path = SCRATCH / name
    nbformat.write(notebook, path)
    return path


def small_notebook(name: str, *sources: str) -> Path:
    """A notebook of these code cells alone: all of it fits the page, so every cell is in the DOM."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    return scratch_notebook(name, notebook)
