"""The book: built once, then read as a visitor's browser would."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from lab import FLAGS, chromium

from tools.shape import DEEPER, lessons

pytest.importorskip("sphinx", reason="the book is built with Python 3.11 or newer")
from bs4 import BeautifulSoup

from tools.book.build import build
from tools.book.lesson_page import LEFT_OUT, is_chart

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # it is a product, built once a night
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


def test_the_first_page_opens_with_the_way_of_a_request_playing_and_shows_all_stages(pages, site):
    engine, stages = (json.loads(tag.string) for tag in pages[site / "index.html"].select("div.chart > script"))
    assert engine["description"].startswith("the engine on one page: a request of")
    assert [signal["value"] for signal in engine["signals"] if signal["name"] == "play"] == [True]
    assert "this lesson" not in json.dumps(engine)
    assert "seconds until all are answered" in json.dumps(stages)


def test_each_page_says_what_it_is_to_a_search_engine_and_to_a_shared_link(pages, site):
    described = {}
    for path, page in pages.items():
        assert (path.parent / page.find("link", rel="icon")["href"]).is_file(), path
        if path.name in ("search.html", "genindex.html"):
            continue
        facts = {tag.get("name") or tag.get("property"): tag["content"] for tag in page.find_all("meta", content=True)}
        assert facts["description"] == facts["og:description"] and 20 <= len(facts["description"]) <= 200, path
        assert facts["og:title"] == page.h1.find(string=True), path
        assert facts["og:image"] == "https://someone.github.io/course/_static/requests.png", path
        described[facts["description"]] = path
    assert len(described) == len(pages) - 2, "two pages say the same"
    assert (site / "_static" / "requests.png").is_file()


def test_a_lesson_starts_in_colab_codespaces_and_binder(pages, site):
    buttons = pages[site / "notebooks" / "05_block_table.html"].select(".launch a")
    assert {tag.get_text(strip=True): tag["href"] for tag in buttons} == {
        "Colab": "https://colab.research.google.com/github/someone/course/blob/colab/notebooks/05_block_table.ipynb",
        "Codespaces": "https://codespaces.new/someone/course",
        "Binder": "https://mybinder.org/v2/gh/someone/course/main?urlpath=lab%2Ftree%2Fnotebooks%2F05_block_table.ipynb",
    }


def test_the_glossary_is_short_and_each_term_names_a_lesson(pages, site):
    terms = pages[site / "glossary.html"].select("dl.glossary > dt")
    meanings = pages[site / "glossary.html"].select("dl.glossary > dd")
    assert 40 <= len(terms) == len(meanings) <= 60
    assert all(meaning.find("a", href=re.compile(r"^notebooks/(\d\d|a\d)_")) for meaning in meanings)


@pytest.fixture
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield browser
        browser.close()


needs_chromium = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium here: install it (apt install chromium)"
)


@pytest.mark.browser
@needs_chromium
def test_a_page_is_drawn_without_an_error_or_a_warning(site, browser):
    for name in ("index", "notebooks/05_block_table", "notebooks/14_continuous_batching", "api", "glossary"):
        for width, scheme in ((1300, "light"), (390, "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            said: list[str] = []
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("console", lambda line, said=said: said.append(line.text) if line.type in LOUD else None)
            page.goto((site / f"{name}.html").as_uri())
            for chart in page.locator("div.chart:visible").all():
                chart.scroll_into_view_if_needed()
                chart.locator("svg.marks").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate(SHRUNK, LEAST_SCALE) == [], (name, width)
            assert page.evaluate(CUT_CONTROLS) == [], (name, width)
            assert not said, (name, scheme, said)
            page.close()


@pytest.mark.browser
@needs_chromium
def test_no_two_cells_of_a_recorded_table_run_together(site, browser):
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    rows = 0
    for path in lessons():
        page.goto((site / "notebooks" / f"{path.stem}.html").as_uri())
        counted, near = page.evaluate(TOO_NEAR, LEAST_GAP)
        assert near == [], path.stem
        rows += counted
    assert rows > 1000


@pytest.fixture
def address(site) -> Iterator[str]:
    """Serve the book, since a page that is a file may not read others, and give its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.browser
@needs_chromium
def test_a_search_quotes_the_text_of_a_page_and_none_of_the_themes_buttons(site, browser, address, pages):
    page = browser.new_page()
    page.goto(f"{address}/search.html?q=scaling")
    page.locator("#search-results > p", has_text="Search finished").wait_for()
    results = page.locator("#search-results li").filter(has=page.locator("p.context"))
    assert results.count() >= 3
    for result in results.all():
        path = urlsplit(result.locator("a").first.get_attribute("href")).path
        article = pages[site / path].select_one("article.bd-article")
        quoted = words(result.locator("p.context").inner_text()).removeprefix("...").removesuffix("...")
        assert quoted in words(article.get_text(" ")), path


def words(text: str) -> str:
    """Return a text without its spaces, which a browser changes."""
    return re.sub(r"[\s#]+", "", text)


LOUD = ("error", "warning")
LEAST_SCALE = 0.75  # of a chart: its smallest letters have 10 pixels
LEAST_GAP = 8  # pixels

# Charts that are drawn smaller than `least` times their size.
SHRUNK = """(least) => [...document.querySelectorAll("div.chart svg.marks")]
  .filter((svg) => svg.getBoundingClientRect().width < least * svg.viewBox.baseVal.width)
  .map((svg) => svg.getAttribute("aria-label") || svg.outerHTML.slice(0, 200))"""

# Sliders whose label or number is not on the page.
CUT_CONTROLS = """() => [...document.querySelectorAll("div.chart .vega-bind")]
  .filter((control) => control.scrollWidth > control.closest("div.chart").clientWidth)
  .map((control) => control.innerText)"""

# How many rows recorded tables have, and neighbours in a row whose texts are less than `least` pixels apart.
TOO_NEAR = """(least) => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
  const box = (cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return range.getBoundingClientRect();
  };
  const near = [], rows = document.querySelectorAll("div.cell_output table:not(.rose-code) tr");
  for (const row of rows) {
    const cells = [...row.cells].filter((cell) => cell.textContent.trim());
    for (const [i, cell] of cells.slice(1).entries())
      if (box(cell).left - box(cells[i]).right < least) near.push(`${cells[i].textContent}|${cell.textContent}`);
  }
  return [rows.length, near];
}"""
