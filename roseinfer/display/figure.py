"""Plots: one look for all lessons, and figures that come with a text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008), without black, which is for text; the lightest colour last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
PAPER = "#FFFFFF"
INK = "#222222"


def apply_style() -> None:
    """Set matplotlib's defaults. Figures keep their own paper: dark ink on white reads on both of Lab's themes."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=PALETTE),
            "figure.figsize": (8, 3.5),
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "figure.facecolor": PAPER,
            "savefig.facecolor": PAPER,
            "axes.facecolor": PAPER,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.axisbelow": True,
            "grid.color": "#DDDDDD",
            "font.size": 10,
            "legend.frameon": False,
            **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
            "svg.hashsalt": "roseinfer",  # without it the ids in an SVG are new on every run
        }
    )


class Picture:
    """A figure as png, with its text as text/plain: what it shows, for those who do not see it and for nbval."""

    def __init__(self, png: bytes, text: str) -> None:
        self.png = png
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"text/plain": self.text, "image/png": self.png}, {"image/png": {"alt": self.text}}


def figure_alt(fig: Figure, text: str) -> Picture:
    """Take `fig` off pyplot's list, so that it is shown once, and return it with its text.

    text: what the figure shows, in exact facts only. Raises ValueError when it is empty.
    """
    if not text.strip():
        raise ValueError(f"text must say what the figure shows, got {text!r}")
    from matplotlib import pyplot

    image = io.BytesIO()
    fig.savefig(image, format="png", metadata={"Software": None})
    pyplot.close(fig)
    return Picture(image.getvalue(), text)
