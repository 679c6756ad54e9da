"""Slides: which cell becomes which slide, and that a lesson's file shows offline."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

import nbformat
import pytest
from lab import FLAGS, chromium
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.pages import slides
from course.pages.folds import FOLD, placed
from course.pages.headings import heading_of, headings, split_at_headings
from roseinfer.cli.main import main
from roseinfer.paths import ROOT

pytestmark = pytest.mark.slow


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def code(source, *outputs, **metadata):
    return new_code_cell(source, outputs=list(outputs), metadata=metadata)


def text_output(text="2", kind="execute_result"):
    return new_output(kind, {"text/plain": text})


LESSON = new_notebook(
    cells=[
        new_markdown_cell("# 42 · A lesson\n\n**The question.** Why?"),
        code("teach.setup()", text_output()),
        new_markdown_cell("## See it slow\n\nLook:"),
        code("1 + 1", text_output()),
        code("2 + 2", text_output("4")),
        code("x = 1"),
        new_markdown_cell("Prose.\n\n## Predict\n\nHow many?\n\n### A closer look"),
        code("race()", text_output("Race(a, b)", "display_data"), text_output("a table")),
        code("\n".join(f"line_{i} = {i}" for i in range(13)), text_output()),
        new_markdown_cell("## Your turn"),
        code('teach.exercise("42.1")', text_output("a card")),
        code("def stub(): ...", exercise="42.1", tags=["exercise"]),
        code('teach.check("42.1", stub)', text_output("not attempted")),
        new_markdown_cell("### Deeper: more", metadata={FOLD: True}),
        code("more()", text_output()),
        new_markdown_cell("### On: more"),
        new_markdown_cell("**Next:** more."),
    ]
)


def types(nb):
    return [cell.metadata.slideshow.slide_type for cell in slides.lay_out(nb).cells]


# Which cell becomes which slide


def test_the_rule():
    assert types(LESSON) == [
        "slide",
        "skip",  # the title, the set-up
        "slide",
        "fragment",
        "subslide",
        "-",  # the first section, what it asks for, the next, one without an output
        "subslide",
        "slide",
        "subslide",
        "fragment",
        "subslide",  # prose, the second section and its part
        "slide",
        "fragment",
        "skip",
        "skip",
        "subslide",
        "subslide",  # the exercise without what the learner writes; what is folded is left out
    ]


def test_a_cells_own_metadata_comes_first():
    nb = nbformat.from_dict(LESSON)
    wanted = {3: "skip", 11: "subslide"}
    nb.cells = [cell.copy() for cell in nb.cells]
    for i, slide_type in wanted.items():
        nb.cells[i] = nbformat.from_dict({**nb.cells[i], "metadata": {"slideshow": {"slide_type": slide_type}}})
    found = types(nb)
    assert found[3] == "skip" and found[13] == "subslide"
    assert found[4] == "fragment", "what is skipped does not count as the cell before"


def test_the_notebook_itself_stays_as_it_is():
    before = nbformat.writes(LESSON)
    slides.to_slides(LESSON)
    assert nbformat.writes(LESSON) == before


def test_long_code_is_folded_and_a_races_bars_are_left_out():
    cells = slides.lay_out(LESSON).cells
    assert [cell.metadata.get("folded") for cell in cells if cell.cell_type == "code"].count("code, 13 lines") == 1
    (race,) = [cell for cell in cells if cell.source == "race()"]
    assert [output.data["text/plain"] for output in race.outputs] == ["a table"]


def test_headings_are_found_outside_of_fences_alone():
    text = "# One\n\n```python\n# a comment\n```\n\n~~~\n## no\n```\n~~~\n##No space\n## Two ##\nwords"
    assert headings(text) == [(1, "One"), (2, "Two")]
    assert split_at_headings(f"before\n{text}")[0] == "before"
    assert heading_of("words\n# One") is None


def test_a_notebook_without_a_title_is_refused():
    with pytest.raises(ValueError, match="# title"):
        slides.to_slides(new_notebook(cells=[new_markdown_cell("words")]))
    with pytest.raises(ValueError, match="# title"):
        slides.to_slides(new_notebook())


# What is in the file


class Page(HTMLParser):
    """Addresses that a browser would load, the alternative texts, and the slides: sections within sections."""

    def __init__(self, html):
        super().__init__()
        self.loaded, self.alts, self.links, self.tags = [], [], [], Counter()
        self.depth = self.slides = self.columns = 0
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags[tag] += 1
        if tag == "a":
            self.links.append(attrs.get("href"))
        else:
            self.loaded += [attrs[name] for name in ("src", "href", "data") if name in attrs]
        if tag == "img":
            self.alts.append(attrs.get("alt"))
        if tag == "section":
            self.columns += self.depth == 0
            self.slides += self.depth == 1
            self.depth += 1

    def handle_endtag(self, tag):
        self.depth -= tag == "section"


def test_the_slides_of_a_lesson_are_counted():
    page = Page(slides.to_slides(LESSON))
    assert (page.columns, page.slides, page.depth) == (4, 10, 0)


def test_formulas_need_no_script_and_links_no_other_folder():
    lines = (
        "# T\n\nHere $e^{s_j}$ and `$x$`.\n\n$$a / l$$\n\n[a](01_naive_cat.ipynb#x) "
        "[b](../roseinfer/data/tiny-gpt2/README.md) [c](https://example.org/page)"
    )
    html = slides.to_slides(new_notebook(cells=[new_markdown_cell(lines)]))
    page = Page(html)
    assert page.tags["math"] == 2 and "<code>$x$</code>" in html
    assert page.links == ["01_naive_cat.html#x", "https://example.org/page"]


def test_a_figure_keeps_its_text():
    alt = {"image/png": {"alt": 'A "bar" & a line'}}
    picture = new_output("execute_result", {"image/png": PIXEL, "text/plain": "x"}, metadata=alt)
    cells = [new_markdown_cell("# T"), new_markdown_cell("## S"), code("draw()", picture)]
    assert Page(slides.to_slides(new_notebook(cells=cells))).alts == ['A "bar" & a line']


def texts_of_figures(output) -> list[str]:
    """Alternative texts of a picture, or of those within a card of HTML: recorded runs are shown so."""
    data = output.get("data", {})
    if "image/png" in data:
        return [output.metadata["image/png"]["alt"]]
    return Page(data.get("text/html", "")).alts


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_loads_nothing_and_every_figure_has_its_text(path):
    nb = nbformat.read(path, as_version=4)
    html = slides.to_slides(nb)
    page = Page(html)
    assert all(address.startswith("data:") for address in page.loaded)
    assert "@import" not in html and "url(http" not in html and "import(" not in html
    figures = [
        alt
        for cell in slides.lay_out(nb).cells
        if cell.cell_type == "code" and cell.metadata.slideshow.slide_type != "skip"
        for output in cell.outputs
        for alt in texts_of_figures(output)
    ]
    assert page.alts == figures and all(figures)
    core = [each.cell for each in placed(nb.cells) if not each.folded and not each.cell.metadata.get(FOLD)]
    text = "\n\n".join(cell.source for cell in core if cell.cell_type == "markdown")
    assert page.columns == sum(level <= 2 for level, _ in headings(text))


def test_one_file_a_lesson(tmp_path, capsys):
    main(["slides", str(NOTEBOOKS[0]), str(NOTEBOOKS[1]), "--out", str(tmp_path / "new")])
    written = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert written == [f"{path.stem}.html" for path in NOTEBOOKS[:2]]
    assert capsys.readouterr().out.count("\n") == 2


# In a browser that reaches nothing


@pytest.mark.nightly
@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here: apt install chromium to look at slides")
def test_slides_show_offline_and_tables_fit(tmp_path):
    from playwright.sync_api import sync_playwright

    main(["slides", str(NOTEBOOKS[3]), "--out", str(tmp_path)])
    address = (tmp_path / f"{NOTEBOOKS[3].stem}.html").as_uri()
    asked, errors = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.route("**/*", lambda route: (asked.append(route.request.url), only_files(route)))
        page.goto(address)
        page.wait_for_function("Reveal.isReady()")
        shown = page.evaluate(WALK)
        browser.close()
    assert asked == [address] and not errors
    assert len(shown) == Page(slides.to_slides(nbformat.read(NOTEBOOKS[3], as_version=4))).slides
    assert [slide["title"] for slide in shown if slide["wide"]] == []


def only_files(route):
    (route.continue_ if route.request.url.startswith("file:") else route.abort)()


WALK = """() => Reveal.getSlides().map((slide) => {
  const at = Reveal.getIndices(slide);
  Reveal.slide(at.h, at.v, 99);
  return {title: slide.innerText.slice(0, 40), wide: slide.scrollWidth > slide.clientWidth};
})"""
