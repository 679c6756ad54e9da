"""Plots: one look for all lessons, and figures that come with a text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008), without black, which is for text; the lightest colour last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
# A picture that brings its own paper: a file, or the still that is shown where no chart can be drawn.
PAPER, INK = "#FFFFFF", "#222222"
# Text and lines of a picture that lies on the page itself and cannot take its theme's colour. The contrast is 4.35 on
# white as on the #111111 of JupyterLab's dark theme.
MIDDLE_INK = "#797979"
# Matplotlib's defaults for a figure that reads on both themes.
STYLE: dict[Any, Any] = {
    "axes.prop_cycle": f"cycler(color={list(PALETTE)})",
    "figure.figsize": (8, 3.5),
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#808080",
    "grid.alpha": 0.3,
    "font.size": 10,
    "legend.frameon": False,
    # 1. No background, and one ink for all that is black by default.
    **dict.fromkeys(("figure.facecolor", "figure.edgecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "patch.edgecolor"), MIDDLE_INK),
    **dict.fromkeys((f"boxplot.{part}props.color" for part in ("box", "cap", "flier", "whisker")), MIDDLE_INK),
    "boxplot.flierprops.markeredgecolor": MIDDLE_INK,
    # 2. IPython asks JupyterLab for a white background if all tick labels are dark, for a black one if all are light.
    # Those of x count as dark, and those of y as light.
    "xtick.color": MIDDLE_INK,
    "ytick.color": "#808080",
    "svg.hashsalt": "roseinfer",  # without it the ids in an SVG are new on every run
}


def apply_style() -> None:
    """Make STYLE matplotlib's defaults."""
    import matplotlib

    matplotlib.rcParams.update(STYLE)


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
