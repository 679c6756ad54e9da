"""recorded: runs of the ladder that were measured elsewhere, on a GPU, and are kept in data/runs."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .view import View, card

if TYPE_CHECKING:
    from roseinfer.bench import LadderResult

RUNS = Path(__file__).resolve().parents[2] / "data" / "runs"


@dataclass(frozen=True, repr=False)
class Recorded(View):
    """runs: where a run lies, such as "a100/ladder.json" -> what was measured."""

    runs: dict[str, LadderResult]

    def __repr__(self) -> str:
        if not self.runs:
            return "no recorded GPU run in data/runs yet"
        return "\n\n".join(f"recorded: data/runs/{where}\n{run!r}" for where, run in self.runs.items())

    def to_html(self) -> str:
        if not self.runs:
            return card(f"<p class='rose-muted'>{self!r}</p>")
        return "".join(
            card(
                f"<p><b>Recorded on {html.escape(run.device)}</b>, not measured here "
                f"<span class='rose-muted'>(<code>data/runs/{html.escape(where)}</code>)</span></p>"
                + run._repr_mimebundle_()["text/html"]
            )
            for where, run in self.runs.items()
        )


def recorded(name: str = "ladder", folder: Path = RUNS) -> Recorded:
    """All runs `<folder>/<gpu>/<name>*.json`, as `python -m roseinfer.ladder --json` writes them.

    Raises ValueError for a file that is no such run.
    """
    from roseinfer.bench import LadderResult

    runs = {}
    for path in sorted(folder.glob(f"*/{name}*.json")):
        try:
            runs[path.relative_to(folder).as_posix()] = LadderResult(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"data/runs/{path.relative_to(folder)} is no recorded run of the ladder: {error}"
            ) from error
    return Recorded(runs)
