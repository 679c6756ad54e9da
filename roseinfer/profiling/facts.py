"""Facts: a result as data, which says of each column whether it is exact or a time. roseinfer.display shows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


class HasFacts(ABC):
    """A result that can be shown as a table. A notebook shows it so once roseinfer.display.install() has run."""

    @abstractmethod
    def facts(self) -> Facts: ...


@dataclass(eq=False, repr=False)
class Facts(HasFacts):
    """`df` with its columns of `exact` facts, the same on any machine, and its `live` ones, measured on this one.

    title: exact facts only. note: where the live columns come from.
    formats: column -> str.format template, such as {"total_ms": "{:,.3f}", "share": "{:.1%}"}.
    bars: columns of shares in 0..1 that are worth a bar.
    folded: columns that few readers need, for a view that can show them on demand.
    explanation: what the columns mean, shown on demand with the folded ones.
    exact_rows: booleans, one per row; rows marked False are not the same everywhere (say, those of a GPU).
    query: the SQL that made the rows.
    warning: why the live columns should not be believed, for a view to show first.

    Raises ValueError if a column is not in df, or exact_rows has another length than df.
    """

    df: pd.DataFrame
    _: KW_ONLY
    exact: Sequence[str]
    live: Sequence[str] = ()
    title: str = ""
    note: str = ""
    formats: Mapping[str, str] = field(default_factory=dict)
    bars: Sequence[str] = ()
    folded: Sequence[str] = ()
    explanation: str = ""
    exact_rows: Sequence[bool] | None = None
    query: str = ""
    warning: str = ""

    def __post_init__(self) -> None:
        for argument in ("exact", "live", "formats", "bars", "folded"):
            unknown = [name for name in getattr(self, argument) if name not in self.df.columns]
            if unknown:
                raise ValueError(f"{argument} names columns {unknown} that df lacks; it has {list(self.df.columns)}")
        if self.exact_rows is None:
            self.exact_rows = [True] * len(self.df)
        if len(self.exact_rows) != len(self.df):
            raise ValueError(f"exact_rows has {len(self.exact_rows)} entries, df has {len(self.df)} rows")

    def facts(self) -> Facts:
        return self
