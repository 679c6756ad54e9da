"""Chart: an Altair chart with its text. Alive in JupyterLab (tooltips, zoom), a picture wherever nothing can run."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .figure import INK as DARK_INK
from .figure import MIDDLE_INK, PALETTE, PAPER
from .view import View

if TYPE_CHECKING:
    import altair
    import pandas as pd
    from IPython.display import DisplayHandle

# JupyterLab draws it by itself, in a notebook that has not been run, too.
VEGA_LITE = "application/vnd.vegalite.v5+json"
SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"  # any 5, for JupyterLab's is older than Altair's
PAGE_WIDTH = 620  # pixels: with its menu and a label that overhangs, in a window of 1,100 beside JupyterLab's side bar
PNG_SCALE = 1.5
GROUNDS = ("#000000", PAPER)  # to tell a picture from its background
KINDS = ("png", "svg", "pdf", "html")  # of files
# JupyterLab draws charts as SVG in the page: there this is the colour of its theme's text, after a change, too.
INK = "currentColor"
GRID = "rgba(128, 128, 128, 0.3)"
SEAM = "rgba(128, 128, 128, 0.8)"  # between bars that touch
EMBED = {"embed_options": {"renderer": "svg"}}
# The look of every chart. On JupyterLab's dark theme vega-embed's own dark colours would fill whatever is not set here.
CONFIG = {
    "background": "transparent",
    "font": "sans-serif",
    "padding": 8,
    "range": {"category": PALETTE},
    "mark": {"color": PALETTE[0]},
    "title": {"anchor": "start", "color": INK, "subtitleColor": INK, "fontSize": 13, "subtitleFontSize": 12},
    "style": {"guide-label": {"fill": INK, "fontSize": 12}, "guide-title": {"fill": INK, "fontSize": 12}},
    "axis": {"domainColor": INK, "tickColor": INK, "gridColor": GRID, "titleFontWeight": "normal", "labelLimit": 220},
    "legend": {"labelLimit": 260},
    "view": {"stroke": None},
    "text": {"color": INK, "fontSize": 12},
    "rule": {"color": INK},
}


class Chart(View):
    """text: what it shows in exact facts, for nbval. alt: what the picture shows, times included; the text if empty."""

    def __init__(self, chart: altair.TopLevelMixin, text: str, alt: str = "") -> None:
        self.spec = chart.to_dict() | {"$schema": SCHEMA, "config": CONFIG}
        self.text = text
        self.alt = alt or text

    def __repr__(self) -> str:
        return self.text

    @property
    def png(self) -> bytes:
        return with_palette(self._picture("png", scale=PNG_SCALE))

    def to_html(self) -> str:
        """Return the picture alone, for the HTML of a larger view, as an <img> without a background.

        Its ink reads on both themes: an <img> takes no colour from its page, and JupyterLab drops an <svg> from a
        notebook that has not been run.
        """
        spec = self._inked(MIDDLE_INK)
        png = transparent(*(self._written("png", spec | {"background": ground}, scale=PNG_SCALE) for ground in GROUNDS))
        source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
        return f'<img alt="{html.escape(self.alt)}" width="{image_width(png)}" src="{source}">'

    def save(self, path: str | Path) -> None:
        """Write *.png, *.svg, *.pdf, or *.html, which is alive and offline. Raises ValueError for another suffix."""
        path = Path(path)
        kind = path.suffix.lower().lstrip(".")
        if kind not in KINDS:
            raise ValueError(f"path must end in {', '.join(f'.{one}' for one in KINDS)}, got {str(path)!r}")
        options = {"bundle": True} if kind == "html" else {}
        picture = self.png if kind == "png" else self._picture(kind, **options)
        path.write_bytes(picture if isinstance(picture, bytes) else picture.encode())

    def _picture(self, kind: str, **options: Any) -> Any:
        return self._written(kind, self._inked(DARK_INK) | {"background": PAPER}, **options)

    def _inked(self, ink: str) -> dict[str, Any]:
        """Return the spec with another ink, for a picture whose page gives it no colour."""
        return json.loads(json.dumps(self.spec).replace(f'"{INK}"', f'"{ink}"'))

    def _written(self, kind: str, spec: dict[str, Any], **options: Any) -> Any:
        import altair
        import vl_convert

        version = altair.SCHEMA_VERSION.removeprefix("v").rpartition(".")[0]
        return getattr(vl_convert, f"vegalite_to_{kind}")(spec, vl_version=version, **options)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        png = self.png
        bundle = {"text/plain": repr(self), VEGA_LITE: self.spec, "image/png": png}
        return bundle, {"image/png": {"alt": self.alt, "width": image_width(png)}, VEGA_LITE: EMBED}


def show_live(view: Any) -> DisplayHandle | None:
    """Show a view that can be drawn again in its place; None outside a notebook, where each drawing would be a line."""
    from IPython import get_ipython
    from IPython.display import display

    return display(view, display_id=True) if hasattr(get_ipython(), "kernel") else None


def csv_data(frame: pd.DataFrame) -> altair.Data:
    """Make CSV of the data: one line in a recorded notebook, where JSON would have one for each value."""
    import altair as alt

    parse = {str(name): "number" for name in frame.columns if frame[name].dtype.kind in "iuf"}
    return alt.Data(values=frame.to_csv(index=False), format=alt.CsvDataFormat(type="csv", parse=parse))


def zoom(*axes: str) -> altair.Parameter:
    """Let one drag to move and use Ctrl + wheel to zoom (the wheel alone scrolls); a double click shows all."""
    import altair as alt

    return alt.selection_interval(name="zoom", bind="scales", encodings=list(axes), zoom="wheel![event.ctrlKey]")


def with_palette(png: bytes) -> bytes:
    """Reduce the picture to 256 colours: a tenth of the bytes that vl-convert writes."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()


def transparent(on_black: bytes, on_white: bytes) -> bytes:
    """Remove the picture's background. vl-convert's own has wrong colours wherever a pixel is half transparent."""
    import numpy as np
    from PIL import Image

    black, white = (np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), float) for png in (on_black, on_white))
    opacity = 255 - (white - black).mean(axis=2, keepdims=True)  # what shines through is what differs
    colour = 255 * black / opacity.clip(1)
    png = io.BytesIO()
    pixels = np.concatenate([colour, opacity], axis=2).round().clip(0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(png, format="png", optimize=True)
    return png.getvalue()


def image_width(png: bytes) -> int:
    """Return an image's width in pixels of the page."""
    return round(int.from_bytes(png[16:20], "big") / PNG_SCALE)
