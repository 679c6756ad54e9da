"""Facts: a result as data, which says of each column whether it is exact or a time. roseinfer.display shows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


class HasFacts(ABC):
    """A result that can be shown as a table. In a notebook it is, once roseinfer.display.install() has run."""

    @abstractmethod
    def facts(self) -> Facts: ...


class Facts(HasFacts):
    """`df` with its columns of `exact` facts, the same on any machine, and its `live` ones, measured on this one.

    title: exact facts only. note: where the live columns come from.
    formats: column -> str.format template, such as {"total_ms": "{:,.3f}", "share": "{:.1%}"}.
    bars: columns of shares in 0..1 that are worth a bar.
    exact_rows: booleans, one per row; rows marked False are not the same everywhere (say, those of a GPU).
    query: the SQL that made the rows.

    Raises ValueError if a column is not in df, or exact_rows has another length than df.
    """

    def __init__(
        self,
        df: pd.DataFrame,
        *,
        exact: Sequence[str],
        live: Sequence[str] = (),
        title: str = "",
        note: str = "",
        formats: Mapping[str, str] | None = None,
        bars: Sequence[str] = (),
        exact_rows: Sequence[bool] | None = None,
        query: str = "",
    ) -> None:
        formats = dict(formats or {})
        for argument, names in (("exact", exact), ("live", live), ("formats", formats), ("bars", bars)):
            unknown = [name for name in names if name not in df.columns]
            if unknown:
                raise ValueError(f"{argument} names columns {unknown} that df lacks; it has {list(df.columns)}")
        if exact_rows is not None and len(exact_rows) != len(df):
            raise ValueError(f"exact_rows has {len(exact_rows)} entries, df has {len(df)} rows")
        self.df = df
        self.exact = list(exact)
        self.live = list(live)
        self.title = title
        self.note = note
        self.formats = formats
        self.bars = list(bars)
        self.exact_rows = [True] * len(df) if exact_rows is None else [bool(keep) for keep in exact_rows]
        self.query = query

    def facts(self) -> Facts:
        return self
