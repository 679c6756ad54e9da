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
@pytest.mark.parametrize("router", [pytest.param("round_robin", marks=pytest.mark.nightly), "prefix_aware"])
def test_routers_are_as_the_page_shows_them(tmp_path, router):
    [command] = [one for one in COMMANDS if "2000" in one]
    command = [router if "round_robin" in word else word for word in command]
    output = tmp_path / "routers.json"
    assert main([*command, "--output", str(output)]) == 0
    [row] = json.loads(output.read_text())["rows"]
    stats = [("ttft", "p50"), ("ttft", "p99"), ("tpot", "p50"), ("tpot", "p99")]
    cells = [f"`{router}`", f"{row['hit_rate']:.1%}"]
    cells += [significant(1e3 * row["times"][name][stat]) for name, stat in stats]
    assert f"| {' | '.join(cells)} |" in PAGE.split("### Routers")[1]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[-1])
def test_commands_are_ones_that_the_simulator_takes(command, capsys):
    """With one request too many tokens for any pool: refused after all flags were read, and before anything runs."""
    assert main([*command, "--max-model-len", "20"]) == 2
    assert "arrivals[0] can never fit" in capsys.readouterr().err
