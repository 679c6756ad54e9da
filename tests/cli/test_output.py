"""The way of a command's result: files tried before the run, tables and a short line first, files after both."""

from __future__ import annotations

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiers import in_every_run

from roseinfer.bench.executors import IN_TURN, ONE_BEHIND, ExecutorResult
from roseinfer.bench.host import HostResult
from roseinfer.bench.ladder_result import LadderResult
from roseinfer.bench.offline import OfflineResult
from roseinfer.cli.main import main
from roseinfer.display.measured import rounded
from roseinfer.engine.engine import Engine
from roseinfer.paths import DATA, ROOT
from roseinfer.profiling.progress import RunProgress
from stages import LADDER

pytestmark = pytest.mark.slow


WHERE = {"host": {}, "device": "a CPU", "versions": {"torch": "2"}, "commit": None}
FULL_DISK = Path("/dev/full")
BENCHMARKS = {
    "ladder": "ladder --stages s01 --batch-size 1 --repeats 1 --max-new-tokens 2 --no-hf",
    "host": "bench host --batch-sizes 1,2 --max-tokens 4 --repeats 1",
    "memory": "bench memory --batch-size 1 --max-tokens 2",
    "executors": "bench executors --batch-sizes 1 --max-tokens 2 --repeats 1",
    "drafts": "bench drafts --batch-sizes 1 --prompt-len 4 --max-tokens 2 --repeats 1",
    "eager": "bench eager --batch-size 1 --context 4 --prompt-len 4 --repeats 1",
    "chunks": "bench chunks --prompt-len 16 --decoding 1 --repeats 1",
    "offline": "bench offline --contenders engine --batch-sizes 1,2 --max-tokens 2 --repeats 1",
    "online": "bench online --contenders engine --budgets 64 --requests 1 --scale 1 --prompt-len 4 --output-len 2 "
    "--repeats 1",
    "simulate": "simulate --floor H100+SXM --requests 4",
}
IN_PROCESS = ["host", "executors", "drafts", "eager", "chunks", "offline", "online", "simulate"]  # and soon done
NUM_RUNS = {"host": 4, "executors": 4, "drafts": 4, "eager": 12, "chunks": 4, "offline": 4}  # with those of the warm-up


def words(command: str) -> list[str]:
    return [word.replace("+", " ") for word in command.split()]


@pytest.fixture
def steps_in_flight(monkeypatch):
    """The engine runs as it does on a GPU."""
    made = Engine.__init__

    def as_on_a_gpu(self, model, **settings):
        if settings.get("async_scheduling") is None and not settings.get("speculative"):
            settings["async_scheduling"] = True
        made(self, model, **settings)

    monkeypatch.setattr(Engine, "__init__", as_on_a_gpu)


@pytest.fixture
def told(monkeypatch) -> list[RunProgress]:
    """What a benchmark tells of its runs."""
    seen: list[RunProgress] = []
    monkeypatch.setattr("roseinfer.cli.commands.bench.shown_progress", lambda *doing: nullcontext(seen.append))
    return seen


@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs a file on a full disk")
@pytest.mark.parametrize("name", in_every_run({name: (name,) for name in BENCHMARKS}, IN_PROCESS))
def test_a_full_disk_costs_the_file_and_not_the_result(name, capsys, steps_in_flight, told):
    assert main([*words(BENCHMARKS[name]), "--output", str(FULL_DISK)]) == 1
    out, err = capsys.readouterr()
    *table, line = out.splitlines()
    assert len(table) > 2 and json.loads(line)
    assert err.splitlines()[-1] == "error: --output /dev/full: could not be written (No space left on device)"
    if name in NUM_RUNS:
        assert [run.runs_done for run in told] == list(range(NUM_RUNS[name])) and told[0].runs_total == NUM_RUNS[name]
        assert told[0].repeat < 0 <= told[-1].repeat and told[-1].seconds_left > 0


# The others' tables and lines are shown by the same function, as the test after this one says.
@pytest.mark.parametrize("name", in_every_run({name: (name,) for name in BENCHMARKS}, ["simulate"]))
def test_at_a_terminal_the_table_is_the_last_thing_on_it(name, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words(BENCHMARKS[name])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2 and not [line for line in lines if line.startswith(("{", "["))]


def test_every_command_shows_its_line_by_this_way():
    """No other module prints one: `show_line` alone knows a terminal."""
    printing = re.compile(r"print\([^\n]*(to_line|to_json|on_one_line|json\.dumps)")
    paths = [path for room in ("roseinfer", "course") for path in (ROOT / room).rglob("*.py")]
    found = {path.name: path.read_text(encoding="utf-8") for path in paths}
    own = {name for name, text in found.items() if printing.search(text)}
    # `doctor --json` asks for it; the others talk to the process that started them.
    assert own == {"doctor.py", "worker.py", "memory.py", "compiled_product.py"}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_file_is_tried_before_the_run(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("roseinfer.models.load_model", lambda *a, **k: pytest.fail("a model was loaded"))
    flags = {"--output no/x.json": "a file in a folder that exists"}
    if name in ("offline", "online"):
        flags |= {
            "--chart x.gif": "unknown suffix '.gif', allowed: .html, .png, .svg, .pdf",
            "--chart no/x.png": "a folder",
        }
    for flag, message in flags.items():
        assert main([*words(BENCHMARKS[name]), *flag.split()]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith(f"error: {flag}: ") and message in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_race_that_cannot_be_drawn_is_refused_before_it_runs(capsys, tmp_path):
    argv = ["bench", "offline", "--contenders", "engine", "--chart", str(tmp_path / "x.png")]
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("error: --chart: its bars are set against hf in float32")


def test_what_a_reader_that_has_gone_does_not_see_is_written_all_the_same(tmp_path, monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise BrokenPipeError

        def fileno(self):
            return gone.fileno()

        def isatty(self):
            return False

    path = tmp_path / "out.json"
    with open("/dev/null", "w") as gone:
        monkeypatch.setattr(sys, "stdout", Gone())
        assert main([*words(BENCHMARKS["simulate"]), "--output", str(path)]) == 1
    assert json.loads(path.read_text())["rows"]


def ladder_result() -> LadderResult:
    """Make a result of all stages, with as many samples as a default run has."""
    names = [*(stage.name for stage in LADDER), "engine", "HF generate"]
    row = {
        "tokens_per_second": 1234.56789,
        "tokens_per_second_min": 1200.123,
        "tokens_per_second_max": 1300.456,
        "vs_first": 1.2345678,
        "bytes_copied": 10**6,
        "tokens": "equal",
    }
    return LadderResult(
        arguments={"stages": names, "model": "tiny", "batch_size": 8},
        model={"dtype": "float32"},
        machine={},
        floor={},
        rows=[{"stage": name} | row for name in names],
        samples=[{"name": name, "step_seconds": [0.123456789] * 31} for name in names for _ in range(3)],
        **WHERE,
    )


def test_the_last_line_of_a_whole_ladder_is_short_and_has_medians_and_ranges():
    result = ladder_result()
    line = result.to_line()
    assert len(line) < 4000 < 20000 < len(result.to_json())
    row = json.loads(line)["rows"][0]
    assert row == {
        "stage": "s01_naive_cat",
        "tokens_per_second": 1234.6,
        "tokens_per_second_min": 1200.1,
        "tokens_per_second_max": 1300.5,
        "tokens": "equal",
    }


def test_the_line_of_a_race_that_was_recorded():
    for path in (DATA / "offline").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        result = OfflineResult(**json.loads(text))
        line = json.loads(result.to_line())
        assert len(line["rows"]) == len(result.rows) and "samples" not in line
        assert len(result.to_line()) < len(text) / 3


def test_the_lines_of_host_and_executors():
    steps = {name: 0.001 for name in ("schedule", "prepare", "commit", "planning", "step", "rest", "forward")}
    row = {"batch_size": 8, **steps, "planning_min": 0.0005, "planning_max": 0.002}
    host = json.loads(HostResult(arguments={}, rows=[row], samples=[steps] * 99, **WHERE).to_line())
    assert host["rows"][0]["planning_min"] == 0.0005 and "rest" not in host["rows"][0]
    seconds = {IN_TURN: [1.0, 2.0, 4.0], ONE_BEHIND: [1.0, 1.0, 1.0]}
    row = {"batch_size": 8, "tokens": 8, "seconds": seconds, "same_tokens": True}
    executors = json.loads(ExecutorResult(arguments={}, rows=[row], **WHERE).to_line())
    assert executors["rows"][0][IN_TURN] == {"tokens_per_second": 4.0, "min": 2.0, "max": 8.0}


def test_numbers_are_rounded_wherever_they_are():
    assert rounded({"a": [1.23456789, (2, "x", None)], "b": True}) == {"a": [1.2346, [2, "x", None]], "b": True}
