"""Both executors are raced on the same batches, their tokens compared, every sample kept. No time is judged."""

from __future__ import annotations

import json

import pytest

from roseinfer.bench import executors as module
from roseinfer.bench.executors import IN_TURN, ONE_BEHIND, executors
from roseinfer.cli.main import main


def test_every_run_of_both_is_kept_and_their_tokens_are_compared(monkeypatch: pytest.MonkeyPatch):
    depths, timed = [], module.timed

    def noted(engine, *run):
        depths.append(engine.depth)
        return timed(engine, *run)

    monkeypatch.setattr(module, "timed", noted)
    result = executors("tiny", batch_sizes=[1, 3], prompt_len=4, max_tokens=5, repeats=2)
    assert depths == 2 * [2, 1, 1, 2, 2, 1]
    assert [row["batch_size"] for row in result.rows] == [1, 3] and [row["tokens"] for row in result.rows] == [5, 15]
    assert all(row["same_tokens"] is True for row in result.rows)
    assert all([len(row["seconds"][name]) for name in (IN_TURN, ONE_BEHIND)] == [2, 2] for row in result.rows)
    assert json.loads(result.to_json())["rows"] == result.rows
    assert result.text().splitlines()[2].split()[0] == "1"


def test_other_tokens_are_told_of(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "timed", lambda engine, *a: (1.0, [[1, engine.depth]]))
    result = executors("tiny", batch_sizes=[1], repeats=1)
    assert result.rows[0]["same_tokens"] is False and result.text().splitlines()[2].split()[-1] == "no"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them"),
        ("--batch-sizes 0", "--batch-sizes must be an integer of at least 1, got 0"),
        ("--batch-sizes 1,1", "--batch-sizes must be a list with each value once, got [1, 1]"),
        ("--max-tokens 0", "--max-tokens must be an integer of at least 1, got 0"),
        ("--repeats 0", "--repeats must be an integer of at least 1, got 0"),
        ("--output no/such/folder.json", "--output no/such/folder.json: must be a file in a folder"),
    ],
)
def test_a_bad_argument_is_one_line_and_exit_2(capsys, arguments: str, message: str):
    assert main(["bench", "executors", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err
