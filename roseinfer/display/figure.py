"""The colours of all pictures."""

from __future__ import annotations

# Okabe and Ito, "Color Universal Design" (2008), without black, which is for text; the lightest colour last.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
# A picture that brings its own paper: a file, or the still that is shown where no chart can be drawn.
PAPER, INK = "#FFFFFF", "#222222"
# Text and lines of a picture that lies on the page itself and cannot take its theme's colour. The contrast is 4.35 on
# white as on the #111111 of JupyterLab's dark theme.
MIDDLE_INK = "#797979"
