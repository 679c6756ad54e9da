"""`pytest --nbval notebooks`: every notebook against its recorded outputs, and its solutions, with no further flags.

nbval collects the cells and compares. Running them is done here, through nbclient: nbval's own client loses what C
code prints and ignores a trailing `;`, and would run whatever environment a kernelspec named python3 points to.
Compared are text/plain and stdout; the live views (text/html, charts, images, widgets) and stderr are not. Then the
solutions take the place of the exercises in the same kernel, as a learner's answers do, and the cells that they reach
are run once more. Without Triton or SmolLM2, a notebook is skipped from the first cell that needs it.

`-m "not nightly"` is what `make test` adds: folded cells are left out, what is timed runs twice at most, and a
notebook is passed over that is as it was at its last green run here, with all code that it can reach.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbval.plugin as nbval
import pytest
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course.pages.folds import placed

ROOT = Path(__file__).parents[1]
SANITIZE = ROOT / "tests" / "nbval.cfg"
RUN_BY = (Path(__file__), SANITIZE, ROOT / "tools" / "notebooks.py", ROOT / "tools" / "solutions.py")
# Besides nbval's own: png, jpeg, widget views.
CHARTS = ("application/vnd.vega.v5+json", "application/vnd.vegalite.v5+json")
NOT_COMPARED = ("text/html", *CHARTS, "image/svg+xml", "stderr")
SOLVED = "solutions"  # the name of a notebook's last test
CELL_TIMEOUT = 300  # seconds; nbval's default of 2000 would let one hanging cell hold up everything


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.nbval_sanitize_with:
        config.option.nbval_sanitize_with = str(SANITIZE)


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
        self.passed: set[str] = set()
        self.is_short = "not nightly" in self.config.option.markexpr
        self.stopped_by = ""
        self.cannot_run = ""

    def collect(self) -> Iterator[pytest.Item]:
        items = list(super().collect())
        places = [place for place in placed(self.nb.cells) if place.is_code]
        for item, place in zip(items, places, strict=True):
            cell = Cell.from_parent(self, name=item.name, cell_num=item.cell_num, cell=item.cell, options=item.options)
            cell.is_left_out = item.options["skip"] or (place.folded and self.is_short)
            if place.folded:
                cell.add_marker("nightly")
            self.cells.append(cell)
        yield from self.cells
        if self.solutions.exists():
            yield Solved.from_parent(self, name=SOLVED)

    @property
    def solutions(self) -> Path:
        return self.path.parent / "solutions" / f"{self.path.stem}.py"

    def setup(self) -> None:
        # Not above: these import PyTorch, and xdist's controller runs no notebook.
        from tools.notebooks import kernel_env, notebook_client

        is_unchanged = self.green_run == self.digest
        if self.is_short and is_unchanged:
            pytest.skip(f"{self.path.name} is unchanged since its last green run here, with all code that it can reach")
        self.setup_sanitize_files()
        self.live = copy.deepcopy(self.nb)
        for cell, live in zip(self.cells, [cell for cell in self.live.cells if cell.cell_type == "code"], strict=True):
            cell.live = live
        if self.is_short:
            self.live.cells = [place.cell for place in placed(self.live.cells) if not place.folded]
        timeout = min(CELL_TIMEOUT, self.config.option.nbval_cell_timeout)
        self.client = notebook_client(self.live, self.path.parent, timeout)
        self.client.create_kernel_manager()
        # No time is compared, and those of the 24 requests would come from a machine that runs two notebooks at once.
        # Not fewer rounds: a chart of quartiles needs two.
        rounds = {"ROSEINFER_REPEATS": "2"} if self.is_short else {}
        self.client.start_new_kernel(env=kernel_env() | {"ROSEINFER_REQUESTS": "recorded"} | rounds)
        self.client.start_new_kernel_client()

    def teardown(self) -> None:
        if self.client is not None and self.client.km is not None:
            self.client._cleanup_kernel()
        wanted = {cell.name for cell in self.cells if not cell.is_left_out}
        if self.solutions.exists():
            wanted.add(SOLVED)
        if self.passed == wanted and self.cache:
            self.cache.set(self.cache_key, self.digest)

    @property
    def cache(self) -> pytest.Cache | None:
        """.pytest_cache, which no fresh clone has."""
        return getattr(self.config, "cache", None)

    @property
    def cache_key(self) -> str:
        return f"green_notebooks/{self.path.stem}"

    @property
    def green_run(self) -> str | None:
        """The digest of this notebook and its code when all of its cells passed, if they ever did."""
        return self.cache.get(self.cache_key, None) if self.cache else None

    @cached_property
    def digest(self) -> str:
        from tools.notebooks import digest

        return digest([self.path, self.solutions, *RUN_BY])


class Cell(nbval.IPyNbCell):
    """One code cell, compared with its recorded run."""

    has_run = False
    is_left_out = False
    live: Any = None  # this cell in the copy of the notebook that is being run

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
        self.parent.passed.add(self.name)

    def execute(self) -> None:
        """Run the cell, once. An error that it does not announce stops the notebook: what follows is not run."""
        if self.parent.cannot_run:
            pytest.skip(self.parent.cannot_run)
        if self.has_run or self.is_left_out:
            return
        if self.parent.stopped_by:
            self.raise_cell_error(f"not run, because {self.parent.stopped_by}")
        self.has_run = True
        try:
            self.parent.client.execute_cell(self.live, self.parent.live.cells.index(self.live))
        except CellExecutionError as error:
            no_triton = error.ename == "TritonUnavailable" and find_spec("triton") is None
            if no_triton or "smollm2 is not installed" in error.evalue:
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
        notebook.passed.add(self.name)
