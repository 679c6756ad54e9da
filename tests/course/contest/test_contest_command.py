"""roseinfer contest: what it writes, prints and refuses."""

from __future__ import annotations

import json

import pytest
from small_contest import score_of

from course.contest import Contest, Refused, read_board, read_entry, require_free, write_board
from course.contest.entry_file import class_in
from roseinfer.cli.main import main

ENTRY = "from course.contest import Policy\nclass Mine(Policy):\n    def key(self, seq):\n        return 0\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ENTRY)
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    (tmp_path / "board.json").write_text("{}")
    write_board(tmp_path / "scores.json", [score_of("Mine", 2.0)])
    return tmp_path


WRONG = {
    "contest run nosuch.py": "file nosuch.py: there is no such file",
    "contest run broken.py": "file broken.py, line 1: is no Python (",
    "contest run mine.py --workload long": "--workload: unknown value 'long', allowed: mixed, short, turned",
    "contest run mine.py --repeats 0": "--repeats must be an integer of at least 1, got 0",
    "contest run mine.py --board board.json": "board board.json: must be a scoreboard",
    "contest run mine.py --board scores.json --name Mine": "name 'Mine' is taken on scores.json: give another one",
    "contest run mine.py --name ''": "--name '': must name something",
    "contest run mine.py broken.py --name a": "--name a: names one entry, and 2 files are given",
    "contest run": "missing: FILE",
    "contest new mine.py": "FILE mine.py: exists already",
    "contest new no/mine.py": "FILE no/mine.py: must be a file in a folder that exists",
    "contest show --chart a.gif": "--chart a.gif: unknown suffix '.gif'",
    "contest show --board board.json": "board board.json: must be a scoreboard",
}


@pytest.mark.parametrize(("command", "line"), WRONG.items(), ids=list(WRONG))
def test_wrong_input_is_one_line(command, line, capsys):
    assert main([part.strip("'") for part in command.split()]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1, said


def test_contest_alone_prints_its_help(capsys):
    assert main(["contest"]) == 0
    assert {"new", "run", "show"} <= set(capsys.readouterr().out.split())


def test_new_writes_an_entry_that_can_be_run(here, capsys):
    assert main(["contest", "new", "my_entry.py"]) == 0
    assert capsys.readouterr().out == "written: my_entry.py. Next: roseinfer contest run my_entry.py\n"
    assert class_in(read_entry(here / "my_entry.py")).__name__ == "MyEntry"


@pytest.mark.slow
def test_show_has_the_best_first_and_draws(here, capsys):
    assert main(["contest", "show", "--board", "scores.json", "--chart", "scores.html"]) == 0
    out = capsys.readouterr().out
    assert "Mine" in out and "recorded: Engine" in out
    assert (here / "scores.html").stat().st_size > 1000


class WithoutProcesses(Contest):
    """Refuses bad.py, and gives all others the same score."""

    def __init__(self, workload, repeats, say):
        self.given = workload.name, repeats

    def __exit__(self, *error):
        pass

    def score(self, file, name, board):
        if file.path == "bad.py":
            raise Refused("it failed in its first run")
        require_free(board, "Mine")
        assert self.given == ("short", 1)
        return score_of("Mine", 2.0)


def test_an_entry_that_is_refused_does_not_stop_the_others(here, capsys, monkeypatch):
    """The command alone: test_contests.py scores entries in their processes."""
    monkeypatch.setattr("course.contest.Contest", WithoutProcesses)
    (here / "bad.py").write_text(ENTRY)
    assert main(["contest", "run", "bad.py", "mine.py", "mine.py", "--repeats", "1", "--workload", "short"]) == 1
    said = capsys.readouterr()
    assert "error: bad.py is refused: it failed in its first run\n" in said.err
    assert "error: name 'Mine' is taken on contest.json: give another one\n" in said.err
    assert read_board(here / "contest.json") == [score_of("Mine", 2.0)]
    assert json.loads(said.out.splitlines()[-1])["rows"][0]["name"] == "Mine"
