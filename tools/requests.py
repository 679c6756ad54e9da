"""python -m tools.requests: serve the lessons' 24 requests by every stage, and record it in data/requests.json.

Run it on a quiet machine, for about two minutes. Nothing is written where another stage than the engine is the fastest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from course.teach.served.serve_requests import CPU, RECORDED, measured, recorded_requests
from roseinfer.cli.repository import rungs
from roseinfer.hardware import device_name
from tools.quiet import not_the_best


def record(path: Path = RECORDED) -> None:
    """Serve the requests by every stage that can be timed on this machine, and write what was measured.

    Raises ValueError, and writes nothing, where another stage than the engine was the fastest.
    """
    stages = [each for each in rungs() if not each.why_untimed(CPU)]
    rows = [vars(row) for row in measured(stages, again=True).values()]
    if said := not_the_best(rows):
        raise ValueError(said)
    written = {"where": device_name(CPU), "torch": torch.__version__, "rows": rows}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Record, and say what was recorded. The exit status is 1 if nothing was."""
    try:
        record()
    except ValueError as error:
        print(f"FAILED nothing recorded: {error}", file=sys.stderr)
        return 1
    print(recorded_requests().alt)
    return 0


if __name__ == "__main__":
    sys.exit(main())
