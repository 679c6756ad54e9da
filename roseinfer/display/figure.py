"""The colours of all pictures, and the look of matplotlib's figures."""

from __future__ import annotations

from typing import Any

# Okabe and Ito, "Color Universal Design" (2008), without black, which is for text; the lightest colour last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
# A picture that brings its own paper: a file, or the still that is shown where no chart can be drawn.
PAPER, INK = "#FFFFFF", "#222222"
# Text and lines of a picture that lies on the page itself and cannot take its theme's colour. The contrast is 4.35 on
# white as on the #111111 of JupyterLab's dark theme.
MIDDLE_INK = "#797979"
# Settings of matplotlib for a figure that reads on both themes.
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
