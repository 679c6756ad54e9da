"""How results are shown: tables, figures, charts. Each has a text of exact facts alone, and a live view beside it."""

from __future__ import annotations

from typing import Any

from roseinfer.profiling.facts import HasFacts

from .table import Table

__all__ = ["Table", "install"]


def install() -> None:
    """Show results of roseinfer.profiling as tables in this notebook; outside IPython there is nothing to do."""
    from IPython import get_ipython

    if shell := get_ipython():
        shell.display_formatter.mimebundle_formatter.for_type(HasFacts, _bundle)


def _bundle(result: HasFacts, include: Any = None, exclude: Any = None) -> dict[str, str]:
    return Table.of(result)._repr_mimebundle_(include, exclude)
