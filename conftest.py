"""`pytest --nbval notebooks`: every notebook against its recorded outputs, and its solutions, with no further flags.

nbval collects the cells and compares. Running them is done here, through nbclient: nbval's own client loses what C
code prints and ignores a trailing `;`, and would run whatever environment a kernelspec named python3 points to.
Compared are text/plain and stdout; the live views (text/html, charts, images, widgets) and stderr are not. Then the
solutions take the place of the exercises in the same kernel, as a learner's answers do, and the cells that they reach
are run once more. Without Triton, a notebook is skipped from the first cell that needs it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbval.plugin as nbval
import pytest

SANITIZE = Path(__file__).parent / "tests" / "nbval.cfg"
# Besides nbval's own: png, jpeg, widget views.
CHARTS = ("application/vnd.vega.v5+json", "application/vnd.vegalite.v5+json")
NOT_COMPARED = ("text/html", *CHARTS, "image/svg+xml", "stderr")
CELL_TIMEOUT = 300  # seconds; nbval's default of 2000 would let one hanging cell hold up everything


def pytest_configure(config: pytest.Config) -> None:
    option = config.option
    if getattr(option, "nbval", False) and not option.nbval_sanitize_with:
        option.nbval_sanitize_with = str(SANITIZE)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Iterator[None]:
    found = yield
    return [
        Notebook.from_parent(parent, path=file_path) if isinstance(collector, nbval.IPyNbFile) else collector
        for collector in found
    ]


class Notebook(nbval.IPyNbFile):
    """One notebook, with a kernel of this interpreter from the first of its cells to the last."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.skip_compare += NOT_COMPARED
        self.client: Any = None
        self.cells: list[Cell] = []
        self.stopped_by = ""
        self.cannot_run = ""

    def collect(self) -> Iterator[pytest.Item]:
        for item in super().collect():
            cell = Cell.from_parent(self, name=item.name, cell_num=item.cell_num, cell=item.cell, options=item.options)
            self.cells.append(cell)
        yield from self.cells
        if self.solutions.exists():
            yield Solved.from_parent(self, name="solutions")

    @property
    def solutions(self) -> Path:
        return self.path.parent / "solutions" / f"{self.path.stem}.py"

    def setup(self) -> None:
        # Not above: this file is loaded for every test run, and these imports are for notebooks alone.
        from tools.notebooks import kernel_env, notebook_client

        self.setup_sanitize_files()
        self.live = copy.deepcopy(self.nb)
        timeout = min(CELL_TIMEOUT, self.config.option.nbval_cell_timeout)
        self.client = notebook_client(self.live, self.path.parent, timeout)
        self.client.create_kernel_manager()
        # The climb's times are not compared, and would come from a machine that runs two notebooks at once.
        self.client.start_new_kernel(env=kernel_env() | {"ROSEINFER_CLIMB": "recorded"})
        self.client.start_new_kernel_client()

    def teardown(self) -> None:
        if self.client is not None and self.client.km is not None:
            self.client._cleanup_kernel()


class Cell(nbval.IPyNbCell):
    """One code cell, compared with its recorded run."""

    has_run = False

    def runtest(self) -> None:
        if self.options["skip"]:
            pytest.skip()
        if self.cell.source.strip() and self.cell.execution_count is None:
            self.raise_cell_error("this cell has no recorded run, nothing would be compared: `make notebooks` records")
        for earlier in self.parent.cells[: self.cell_num]:  # with -k, --lf or a cell's own id they were left out
            earlier.execute()
        self.execute()
        live = nbval.coalesce_streams(self.live.outputs)
        recorded = nbval.coalesce_streams(self.cell.outputs)
        if self.options["check"] and not self.compare_outputs(live, recorded):
            self.raise_cell_error("Cell outputs differ", "\n".join(self.comparison_traceback))

    @property
    def live(self) -> Any:
        """This cell in the copy of the notebook that is being run."""
        return [cell for cell in self.parent.live.cells if cell.cell_type == "code"][self.cell_num]

    def execute(self) -> None:
        """Run the cell, once. An error that it does not announce stops the notebook: what follows is not run."""
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

        if self.parent.cannot_run:
            pytest.skip(self.parent.cannot_run)
        if self.has_run or self.options["skip"]:
            return
        if self.parent.stopped_by:
            self.raise_cell_error(f"not run, because {self.parent.stopped_by}")
        self.has_run = True
        try:
            self.parent.client.execute_cell(self.live, self.parent.live.cells.index(self.live))
        except CellExecutionError as error:
            if error.ename == "TritonUnavailable" and find_spec("triton") is None:
                self.parent.cannot_run = error.evalue
                pytest.skip(error.evalue)
            if not self.options["check_exception"]:
                self._stop(f"raised {error.ename}", error.traceback)
        except CellTimeoutError:
            self._stop(f"ran for more than {self.parent.client.timeout:g} s")
        except DeadKernelError:
            self._stop("killed the kernel")

    def _stop(self, what: str, traceback: str | None = None) -> None:
        self.parent.stopped_by = f"{self.name} {what}"
        self.raise_cell_error(f"{self.name} {what}", traceback)


class Solved(pytest.Item):
    """The notebook's solutions in place of its exercises: every check says PASS, and no cell that they reach fails."""

    def runtest(self) -> None:
        from course.teach.exercises.solutions import parse_solutions
        from tools.notebooks import plain_text
        from tools.solutions import check_cells, fill, reached, stubs

        notebook = self.parent
        for cell in notebook.cells:
            cell.execute()
        solved = fill(notebook.live, parse_solutions(notebook.solutions.read_text(encoding="utf-8")))
        exercises = stubs(solved)
        notebook.client.nb = solved
        for number in reached(solved):
            notebook.client.execute_cell(solved.cells[number], number)
        verdicts = {id: [plain_text(cell) for cell in check_cells(solved, id)] for id in exercises}
        assert verdicts == {id: [[f"{id} PASS"]] * len(texts) for id, texts in verdicts.items()}
