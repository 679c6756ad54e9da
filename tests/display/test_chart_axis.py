"""The last label of an axis is as far from its neighbour as the others are."""

from __future__ import annotations

import re

import altair as alt
import pandas as pd

from roseinfer.display.chart import Chart


def test_the_labels_of_an_axis_are_equally_far_apart(tmp_path):
    ends = pd.DataFrame({"ms": [0, 40]})
    x = alt.X("ms:Q", scale=alt.Scale(domain=[0, 40], nice=False), axis=alt.Axis(tickCount=20))
    Chart(alt.Chart(ends, width=320, height=20).mark_point().encode(x=x), "an axis").save(tmp_path / "axis.svg")
    label = r'<text text-anchor="(\w+)" transform="translate\((\d+),\d+\)"[^>]*>(\d+)</text>'
    labels = re.findall(label, (tmp_path / "axis.svg").read_text())
    assert labels == [("middle", str(8 * ms), str(ms)) for ms in range(0, 41, 2)]
