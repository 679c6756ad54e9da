"""draw_weight_order: where the numbers of a matrix lie in memory, row by row and packed."""

from __future__ import annotations

from roseinfer.arguments import require_count
from roseinfer.display.chart import PAGE_WIDTH, Chart, csv_data
from roseinfer.display.figure import PAPER


def draw_weight_order(num_rows: int = 8, width: int = 8, block: int = 4) -> Chart:
    """Two panels of a matrix [num_rows, width], each number's place in memory on it: row by row, and in blocks of
    `block` rows, column by column inside.

    Raises ValueError for a size below 1, or num_rows that `block` does not divide.
    """
    for name, value in (("num_rows", num_rows), ("width", width), ("block", block)):
        require_count(name, value, at_least=1)
    if num_rows % block:
        raise ValueError(f"num_rows={num_rows} must be a multiple of block={block}")
    import altair as alt
    import pandas as pd

    places = {
        "row by row": lambda row, column: row * width + column,
        f"packed: {block} rows at a time": lambda row, column: (
            row // block * block * width + column * block + row % block
        ),
    }
    panels = []
    for title, place in places.items():
        cells = [{"row": r, "column": c, "place": place(r, c)} for r in range(num_rows) for c in range(width)]
        base = alt.Chart(csv_data(pd.DataFrame(cells))).encode(
            alt.X("column:O", title="input", axis=alt.Axis(labelAngle=0)), alt.Y("row:O", title="output")
        )
        colour = alt.Color("place:Q", scale=alt.Scale(scheme="blues"), legend=None)
        squares = base.mark_rect(stroke=PAPER).encode(colour, tooltip=["row:O", "column:O", "place:Q"])
        dark = alt.condition(f"datum.place > {num_rows * width * 0.6}", alt.value("white"), alt.value("black"))
        panels.append((squares + base.mark_text().encode(text="place:Q", color=dark)).properties(
            width=PAGE_WIDTH // 2 - 80, height=220, title=title
        ))  # fmt: skip
    text = (
        f"A matrix of {num_rows} outputs and {width} inputs, each weight with its place in memory. Row by row, the "
        f"{block} weights of one input for outputs 0 to {block - 1} lie {width} apart; packed, they lie side by side."
    )
    return Chart(alt.hconcat(*panels), text)
