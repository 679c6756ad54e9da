"""Display of results: tables, figures, charts. Each has a text of exact facts alone, and a live view beside it.

Table is imported when it is first named: `roseinfer doctor` lays out its cells on a machine without pandas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .table import Table

__all__ = ["Table", "install"]


def install() -> None:
    """Show results of roseinfer.profiling as tables in this notebook; outside IPython there is nothing to do."""
    from IPython import get_ipython

    from roseinfer.profiling.facts import HasFacts

    if shell := get_ipython():
        shell.display_formatter.mimebundle_formatter.for_type(HasFacts, _bundle)


def __getattr__(name: str) -> Any:
    if name == "Table":
        from .table import Table

        return Table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _bundle(result: Any, include: Any = None, exclude: Any = None) -> dict[str, str]:
    """Return a result in the forms that a notebook can show. result: a HasFacts."""
    from .table import Table

    return Table.of(result)._repr_mimebundle_(include, exclude)
