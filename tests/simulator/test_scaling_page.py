"""docs/scaling.md: a table that it shows is what the command above it gives."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from roseinfer.cli.main import main
from roseinfer.display.number_text import significant
from roseinfer.paths import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(command.replace("\\\n", " "))[1:]
    for command in re.findall(r"^    (roseinfer simulate (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
]


@pytest.mark.slow
def test_routers_are_as_the_page_shows_them(tmp_path):
    [command] = [one for one in COMMANDS if "2000" in one]
    output = tmp_path / "routers.json"
    assert main([*command, "--output", str(output)]) == 0
    shown = PAGE.split("### Routers")[1].split("\n\n")[3].splitlines()[2:]
    stats = [("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99")]
    found = [
        [
            f"`{row['router']}`",
            f"{row['hit_rate']:.1%}",
            *(significant(1e3 * row["times"][name][stat]) for name, stat in stats),
        ]
        for row in json.loads(output.read_text())["rows"]
    ]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in shown] == found


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_commands_are_ones_that_the_simulator_takes(command, capsys):
    """With one request too many tokens for any pool: refused after all flags were read, and before anything runs."""
    assert main([*command, "--max-model-len", "20"]) == 2
    assert "arrivals[0] can never fit" in capsys.readouterr().err
