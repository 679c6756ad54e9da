"""Measured: a result as JSON, with every sample for a file, and on a short line for a terminal or a script."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, ClassVar

DIGITS = 5  # of a number on the short line


class Measured:
    """Of a result, a dataclass with arguments, device, commit and rows. SHORT: what the short line has of a row."""

    SHORT: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Everything, raw samples too."""
        return asdict(self)

    def to_json(self) -> str:
        """Everything, on one line."""
        return on_one_line(self.to_dict())

    def to_line(self) -> str:
        """What was asked, where it ran, and the medians of each row with their spread: no samples."""
        return on_one_line(rounded(self.short()))

    def short(self) -> dict[str, Any]:
        return {
            "arguments": self.arguments, "device": self.device, "commit": self.commit,
            "rows": [self.short_row(row) for row in self.rows],
        }  # fmt: skip

    def short_row(self, row: dict[str, Any]) -> dict[str, Any]:
        return {name: row[name] for name in self.SHORT}


def on_one_line(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def rounded(values: Any) -> Any:
    """Its numbers with DIGITS digits."""
    if isinstance(values, dict):
        return {name: rounded(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if isinstance(values, float) else values
