"""Where the clone's own files lie: what a notebook or a command reads that is no Python."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "data"
TINY = DATA / "tiny-gpt2"  # the bundled model
