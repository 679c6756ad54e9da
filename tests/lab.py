"""JupyterLab in a real browser: the server by the README's command, the page by the Chromium that the system has.

Notebooks are opened and run by JupyterLab's own commands, each of which says when it is done. A click may come before
the page is ready for it, and is then lost.
"""

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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from roseinfer.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page

SCRATCH = ROOT / "build" / "browser"  # notebooks of the tests' own, and screenshots; git ignores build/
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DEADLINE = 120  # seconds for anything that is waited for: only what never comes takes so long
LABCONFIG = {
    # Every cell is in the page, and not only those in sight.
    "default_setting_overrides": {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}},
    # It asks each kernel about itself, and complains when a notebook is closed before the answer.
    "page_config": {"disabledExtensions": {"@jupyterlab/debugger-extension": True}},
}

OPEN = """async ({ path, kernel }) => {
  const app = window.jupyterapp;
  const panel = await app.commands.execute("docmanager:open", { path, kernel });
  await panel.context.ready;
  await panel.context.sessionContext.ready;
  await panel.context.sessionContext.session.kernel.info;
  await panel.revealed;
  app.shell.activateById(panel.id);
  while (app.shell.currentWidget !== panel) await new Promise((next) => setTimeout(next, 20));
}"""
RUN_ALL = "() => window.jupyterapp.commands.execute('notebook:run-all-cells')"
RUN_CELL = """({ number, source }) => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  if (source !== null) notebook.widgets[number].model.sharedModel.setSource(source);
  notebook.deselectAll();
  notebook.activeCellIndex = number;
  return window.jupyterapp.commands.execute("notebook:run-cell");
}"""
CODE_CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .filter((cell) => cell.model.type === "code" && cell.model.sharedModel.getSource().trim())
  .map((cell) => ({
    count: cell.model.executionCount,
    errors: cell.model.sharedModel.toJSON().outputs.filter((output) => output.output_type === "error"),
  }))"""
SAVE = "() => window.jupyterapp.shell.currentWidget.context.save()"
CLOSE = """async (andItsKernel) => {
  const panel = window.jupyterapp.shell.currentWidget;
  if (andItsKernel) await panel.context.sessionContext.shutdown();
  panel.dispose();
}"""
START_KERNEL = """async () => {
  const { id, name } = await window.jupyterapp.serviceManager.kernels.startNew({ name: "python3" });
  return { id, name };
}"""
# Each change shows the splash screen; two within 200 ms, and JupyterLab removes it twice, which is an error.
CHOOSE_THEME = """async (theme) => {
  await window.jupyterapp.commands.execute("apputils:change-theme", { theme });
  const underWay = () => document.body.dataset.jpThemeName !== theme || document.getElementById("jupyterlab-splash");
  while (underWay()) await new Promise((next) => setTimeout(next, 20));
}"""
# JupyterLab's own requests to a kernel: it complains when a notebook is closed before the answer.
CLOSED_EARLY = (
    "Subshell identifier not available in the closeout sequence",
    "History was unable to be retrieved",
    "Error: Canceled future for create_subshell_request",
)
THIS_NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"


def chromium() -> str | None:
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


class JupyterLab:
    """One page of JupyterLab, and the notebook that is open in it.

    said: errors and warnings in the browser's console.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.said: list[str] = []
        page.set_default_timeout(1000 * DEADLINE)
        page.on("console", self._listen)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.goto(f"{url}/lab?reset", wait_until="domcontentloaded")
        page.wait_for_function("window.jupyterapp")
        self.call("() => window.jupyterapp.restored")

    def _listen(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(CLOSED_EARLY):
            self.said.append(message.text)

    def call(self, script: str, argument: Any = None) -> Any:
        """What a function of the page returns, once its promise is kept."""
        late = (
            f"new Promise((_, no) => setTimeout(() => no(new Error('not done after {DEADLINE} s')), {1000 * DEADLINE}))"
        )
        return self.page.evaluate(f"(argument) => Promise.race([({script})(argument), {late}])", argument)

    @contextmanager
    def notebook(self, path: Path, kernel: dict[str, str] | None = None) -> Iterator[None]:
        """Have it open, with a kernel of its own that ends with the block, or with one that runs already."""
        self.call(OPEN, {"path": path.relative_to(ROOT).as_posix(), "kernel": kernel})
        try:
            yield
        finally:
            self.call(CLOSE, kernel is None)

    def start_kernel(self) -> dict[str, str]:
        return self.call(START_KERNEL)

    def run_all(self) -> None:
        assert self.call(RUN_ALL) is True, self.errors

    def run_cell(self, number: int, source: str | None = None) -> bool:
        """Run it, with another source if one is given; False if it raised."""
        return self.call(RUN_CELL, {"number": number, "source": source})

    @property
    def counts(self) -> list[int | None]:
        """The execution count of each code cell."""
        return [cell["count"] for cell in self.call(CODE_CELLS)]

    @property
    def errors(self) -> list[dict]:
        return [error for cell in self.call(CODE_CELLS) for error in cell["errors"]]

    def output(self, number: int) -> Locator:
        """What cell `number` shows."""
        return self.page.locator(f"{THIS_NOTEBOOK} .jp-Cell").nth(number).locator(".jp-OutputArea-output")

    def save(self) -> None:
        self.call(SAVE)

    def choose_theme(self, theme: str) -> None:
        self.call(CHOOSE_THEME, theme)

    def screenshot(self, name: str) -> None:
        self.page.screenshot(path=SCRATCH / f"{name}.png")


@contextmanager
def running_lab() -> Iterator[str]:
    """The address of `make lab` on a free port of this machine, until the block ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = f"--no-browser --port {port} --ServerApp.port_retries=0 --IdentityProvider.token=''"
    arguments += " --LabApp.expose_app_in_browser=True"  # window.jupyterapp
    # One thread, as the tests: torch's own number of them spin for the cores that the browser and the server want.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "VIRTUAL_ENV": sys.prefix}
    environment.pop("PYTEST_CURRENT_TEST", None)
    environment.pop("ROSEINFER_TRITON", None)  # a learner has none
    SCRATCH.mkdir(parents=True, exist_ok=True)
    own = tempfile.TemporaryDirectory(prefix="roseinfer-lab-")  # the learner's record, theme and workspaces stay theirs
    environment |= {
        "ROSEINFER_PROGRESS": f"{own.name}/progress.jsonl",
        "ROSEINFER_MY_ENGINE": f"{own.name}/my_engine",
        "JUPYTERLAB_SETTINGS_DIR": f"{own.name}/settings",
        "JUPYTERLAB_WORKSPACES_DIR": f"{own.name}/workspaces",
        "JUPYTER_CONFIG_PATH": own.name,
    }
    with own, (SCRATCH / "lab.log").open("w") as log:
        Path(own.name, "labconfig").mkdir()
        for name, config in LABCONFIG.items():
            Path(own.name, "labconfig", f"{name}.json").write_text(json.dumps(config))
        server = subprocess.Popen(
            ["make", "lab", f"LAB_ARGS={arguments}"],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url, server, Path(log.name))
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)


def _wait_for(url: str, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/api/status", timeout=10).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def new_notebook(name: str, *sources: str) -> Path:
    """A notebook of these code cells in SCRATCH. Without a kernelspec JupyterLab would ask for a kernel, and wait."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, SCRATCH / name)
    return SCRATCH / name


def copy_of(name: str) -> Path:
    """A copy of one of the course's notebooks in SCRATCH: JupyterLab may save what it has open."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(ROOT / "notebooks" / name, SCRATCH / name))
