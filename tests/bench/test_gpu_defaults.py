"""Benchmarks of the GPU report on a machine without one, with steps in flight as a GPU has them by default."""

from __future__ import annotations

import pytest

from roseinfer.cli.main import main
from roseinfer.engine.engine import Engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "command",
    [
        "host --batch-sizes 2 --max-tokens 6 --repeats 1",
        "executors --batch-sizes 2 --max-tokens 4 --repeats 1",
        "chunks --prompt-len 64 --decoding 2 --budgets 16 --repeats 1",
        "online --contenders engine --budgets 64 --requests 3 --scale 1 --prompt-len 8 --output-len 4 --repeats 1",
        "offline --contenders engine --batch-sizes 2 --max-tokens 4 --repeats 1",
    ],
)
def test_a_benchmark_runs_with_steps_in_flight(command, monkeypatch, capsys):
    made = Engine.__init__

    def as_on_a_gpu(self, model, **settings):
        if settings.get("async_scheduling") is None:
            settings["async_scheduling"] = True
        made(self, model, **settings)

    monkeypatch.setattr(Engine, "__init__", as_on_a_gpu)
    assert main(["bench", *command.split()]) == 0, capsys.readouterr().err
