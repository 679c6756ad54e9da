"""docs/serving.md: its table of servers has the numbers of data/serving/."""

from __future__ import annotations

import json

from roseinfer.display.number_text import significant
from roseinfer.paths import ROOT

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def table_row(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    engine, peer = ({row["name"]: row for row in found["rows"]}[name] for name in ("engine", "llama-server"))
    cells = [
        found["arguments"]["precision"],
        str(found["arguments"]["clients"]),
        significant(engine["tokens_per_second"], 3),
        significant(peer["tokens_per_second"], 3),
        f"×{significant(engine['tokens_per_second'] / peer['tokens_per_second'], 3)}",
        *(significant(1e3 * row["itl_p50"], 3) for row in (engine, peer)),
    ]
    return f"| {' | '.join(cells)} |"


def test_the_table_of_servers_is_what_was_recorded():
    recorded = sorted((ROOT / "data" / "serving").glob("*.json"))
    shown = PAGE.split("llama-server, ms |\n")[1].split("\n\n")[0].splitlines()[1:]
    assert sorted(shown) == sorted(map(table_row, recorded))
