"""The book: built once, then read as a visitor's browser would."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from lab import FLAGS, chromium

from roseinfer.paths import ROOT
from tools.shape import DEEPER

pytest.importorskip("sphinx", reason="the book is built with Python 3.11 or newer")
from bs4 import BeautifulSoup

from tools.book.build import build
from tools.book.docstrings import list_arguments
from tools.book.launch import check_repository
from tools.book.lesson_page import LEFT_OUT, is_chart, to_page
from tools.book.links import rewrite_links
from tools.book.source import lessons
from tools.colab import write_all

pytestmark = pytest.mark.slow
MOST_BYTES = 60_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("book") / "site"
    build(folder, repository="someone/course")  # raises for a warning: a link to nowhere, a page that no contents list
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, BeautifulSoup]:
    return {
        path: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for path in site.rglob("*.html")
        if path.parent.name != "_static"
    }


def test_it_is_small(site):
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < MOST_BYTES


def links_of(page: BeautifulSoup) -> Iterator[str]:
    for tag in page.find_all(["a", "link", "img", "script", "iframe"]):
        if target := tag.get("href") or tag.get("src"):
            yield target


def test_every_link_inside_leads_somewhere(site, pages):
    for path, page in pages.items():
        for target in links_of(page):
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            other = (path.parent / unquote(url.path)).resolve() if url.path else path
            assert other.exists(), (path, target)
            if url.fragment and other.suffix == ".html" and other in pages:
                assert pages[other].find(id=unquote(url.fragment)), (path, target)


def test_a_page_loads_nothing_from_elsewhere(pages):
    for path, page in pages.items():
        for tag in page.find_all(["script", "link", "img", "iframe"]):
            if tag.name == "link" and "canonical" in tag.get("rel", []):
                continue
            assert not (tag.get("src") or tag.get("href") or "").startswith(("http", "//")), (path, tag)


@pytest.mark.parametrize("path", lessons(), ids=lambda path: path.stem)
def test_a_lesson_is_there_whole(path, pages, site):
    page = pages[site / "notebooks" / f"{path.stem}.html"]
    cells = nbformat.read(path, as_version=4).cells
    kept = [cell for cell in cells if cell.cell_type == "code" and not any(call in cell.source for call in LEFT_OUT)]
    charts = sum(is_chart(output.get("data", {})) for cell in kept for output in cell.outputs)
    assert len(page.select("div.chart > script[type='application/json']")) == charts
    folded = [cell for cell in cells if cell.cell_type == "markdown" and cell.source.startswith(f"## {DEEPER}")]
    assert len(page.select("section.deeper > details.deeper")) == len(folded)
    exercises = {cell.metadata["exercise"] for cell in cells if "exercise" in cell.metadata}
    solutions = [tag for tag in page.select("details.sd-dropdown") if "Solution" in tag.summary.get_text()]
    assert len(solutions) == len(exercises) and not any(tag.has_attr("open") for tag in solutions)
    assert "Its numbers were recorded on" in page.get_text()
    assert "not attempted" not in page.get_text()


def test_a_lesson_starts_in_colab_codespaces_and_binder(pages, site):
    buttons = pages[site / "notebooks" / "05_block_table.html"].select(".launch a")
    assert {tag.get_text(strip=True): tag["href"] for tag in buttons} == {
        "Colab": "https://colab.research.google.com/github/someone/course/blob/colab/notebooks/05_block_table.ipynb",
        "Codespaces": "https://codespaces.new/someone/course",
        "Binder": "https://mybinder.org/v2/gh/someone/course/main?urlpath=lab%2Ftree%2Fnotebooks%2F05_block_table.ipynb",
    }


def test_without_a_repository_there_are_no_buttons():
    nb = nbformat.read(lessons()[5], as_version=4)
    page = to_page(nb, {}, "notebooks/05_block_table.ipynb", set())
    assert "launch" not in page.cells[0].source
    with pytest.raises(ValueError, match="repository must be OWNER/NAME, got 'https://"):
        check_repository("https://github.com/someone/course")


def test_colabs_copies_begin_with_a_set_up_cell_and_are_the_lessons_otherwise(tmp_path):
    write_all(tmp_path, "someone/course")
    assert sorted(path.name for path in (tmp_path / "notebooks").iterdir()) == [path.name for path in lessons()]
    for path in lessons()[:3]:
        first, *rest = nbformat.read(tmp_path / "notebooks" / path.name, as_version=4).cells
        assert rest == nbformat.read(path, as_version=4).cells
        assert "git clone --quiet --depth 1 https://github.com/someone/course roseinfer\n" in first.source
        script = first.source.splitlines()[-1].removeprefix("%run roseinfer/")
        assert (ROOT / script).is_file()


def test_the_glossary_is_short_and_each_term_names_a_lesson(pages, site):
    terms = pages[site / "glossary.html"].select("dl.glossary > dt")
    meanings = pages[site / "glossary.html"].select("dl.glossary > dd")
    assert 40 <= len(terms) == len(meanings) <= 60
    assert all(meaning.find("a", href=re.compile(r"^notebooks/(\d\d|a\d)_")) for meaning in meanings)


PAGES = {"notebooks/00_start_here.ipynb", "docs/trust.md"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see [lesson 00](00_start_here.ipynb#predict)", "see [lesson 00](00_start_here.ipynb#predict)"),
        ("see [trust](../docs/trust.md)", "see [trust](../docs/trust.md)"),
        ("see [`stage.py`](../roseinfer/stage.py), then", "see `stage.py`, then"),
        ("[a](https://example.com) [b](#here)", "[a](https://example.com) [b](#here)"),
        ("![The climb](../docs/climb.png)", "![The climb](../docs/climb.png)"),
        ("[of [B, H]](../stages)", "of [B, H]"),
    ],
)
def test_links_to_what_the_book_has_not_are_texts(text, wanted):
    assert rewrite_links(text, "notebooks/01_naive_cat.ipynb", PAGES) == wanted


def test_arguments_become_a_list():
    def race(model, *, seed=0, of=1):
        """Nothing."""

    lines = ["Race.", "", "model: a spec. seed: of draws,", "at least 0. Raises ValueError."]
    list_arguments(None, "function", "race", race, None, lines)
    assert lines == ["Race.", "", "- **model**: a spec.", "- **seed**: of draws, at least 0. Raises ValueError."]


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here: install it (apt install chromium)")
def test_a_page_is_drawn_without_an_error(site, browser):
    for name in ("index", "notebooks/05_block_table", "notebooks/14_continuous_batching", "api", "glossary"):
        for width, scheme in ((1300, "light"), (420, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            errors: list[str] = []
            page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
            page.on("console", lambda line, errors=errors: errors.append(line.text) if line.type == "error" else None)
            page.goto((site / f"{name}.html").as_uri())
            for chart in page.locator("div.chart:visible").all():
                chart.scroll_into_view_if_needed()
                chart.locator("svg.marks").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert not errors, (name, scheme, errors)
            page.close()
