"""Numbers as text: exact ones as they are, measured ones to the digits that mean something."""

from __future__ import annotations

from math import floor, log10
from numbers import Integral, Number
from typing import Any


def verbatim(value: Any) -> str:
    """Write an exact fact digit by digit; numbers with a comma every three."""
    return f"{value:,}" if isinstance(value, Number) and not isinstance(value, bool) else str(value)


def rounded(value: Any, decimals: int = 3) -> str:
    """Format like str, but floats with so many decimals and a comma every three digits."""
    if isinstance(value, Number) and not isinstance(value, Integral):
        return f"{value:,.{decimals}f}"
    return str(value)


def significant(value: float, digits: int = 4) -> str:
    """Round to significant digits, such as 12.46, 0.001234 and 12,346: no digit before the point is rounded away."""
    if value == 0 or not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits - 1}e}" if value else "0"
    decimals = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:,.{decimals}f}"


def exact(value: float) -> str:
    """Write a printed or computed number with all of its digits, but at most eight: 408.43 stays as it is.

    The posts measure no more than eight digits (a mean that SQL printed has sixteen).
    """
    text = significant(value, 8)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def share(value: float) -> str:
    return f"{significant(100 * value, 3)}%"
