"""Build the book with Sphinx, MyST-NB and a book theme; nothing is executed and nothing is fetched."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
from sphinx.application import Sphinx
from sphinx.util.console import nocolor

from roseinfer.paths import ROOT
from tools.book.descriptions import PICTURE
from tools.book.launch import book_address
from tools.book.source import write_source

STATIC = Path(__file__).parent / "static"
SETTINGS: dict[str, Any] = {
    "project": "roseinfer",
    "author": "the authors of roseinfer",
    "release": version("roseinfer"),
    "extensions": [
        "myst_nb",
        "sphinx.ext.autodoc",
        "sphinx.ext.napoleon",  # lists of arguments
        "sphinx_design",
        "sphinx_copybutton",
        "tools.book.folds",
        "tools.book.formulas",
        "tools.book.descriptions",
    ],
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "nb_code_prompt_show": "Show the result",
    "nb_code_prompt_hide": "Hide the result",
    "myst_enable_extensions": ["colon_fence", "dollarmath"],
    "myst_heading_anchors": 4,
    "default_role": "code",  # docstrings write `name`
    "autodoc_typehints": "none",
    "html_math_renderer": "mathml",
    "html_theme": "sphinx_book_theme",
    "html_title": "roseinfer",
    "html_context": {"default_mode": "auto"},
    "html_favicon": "_static/favicon.svg",
    "html_logo": "_static/favicon.svg",
    "html_static_path": ["_static"],
    "html_css_files": ["book.css"],
    "html_js_files": ["charts.js", "book.js"],
    "html_theme_options": {
        "logo": {"text": "roseinfer"},
        "use_download_button": True,
        "show_toc_level": 2,
        "navbar_persistent": [],
        "home_page_in_toc": True,
    },
    "suppress_warnings": ["myst.header"],
}


def build(output: Path, strict: bool = True, repository: str | None = None) -> None:
    """Build the site in `output`.

    repository: OWNER/NAME on GitHub, for buttons that open a lesson online and for the book's address on GitHub Pages;
    None: no buttons, no address.

    Raises RuntimeError for a warning of Sphinx: a link to nowhere, a page in no contents. ValueError for a repository
    of another form.
    """
    source = ROOT / "build" / "book-source"
    write_source(source, repository)
    shutil.copytree(STATIC, source / "_static")
    shutil.copy(ROOT / "docs" / "requests.png", source / PICTURE)
    charts = f"(() => {{{vl_convert.javascript_bundle()}}})();"  # its names would meet the theme's
    (source / "_static" / "charts.js").write_text(charts, encoding="utf-8")
    nocolor()
    settings = SETTINGS | {"html_baseurl": book_address(repository)} if repository else SETTINGS
    app = Sphinx(source, None, output, output.with_name(f"{output.name}-doctrees"), "html", settings, parallel=2)
    app.build()
    if app.statuscode or (strict and app._warncount):
        raise RuntimeError(f"the book has {app._warncount} warnings, which are printed above")
