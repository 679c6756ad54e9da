"""What a browser alone can show of the course: JupyterLab by the README's command, in one page.

Every cell of every lesson is run by `pytest --nbval notebooks`. Here widgets answer, outputs fit the page, and colours
can be read. Screenshots stay in build/browser/.
"""

from __future__ import annotations

from time import monotonic

import nbformat
import pytest
from lab import ROOT, THIS_NOTEBOOK, JupyterLab, copy_of, new_notebook, running_lab
from tiers import in_every_run

from course.teach.exercises.solutions import parse_solutions

pytestmark = pytest.mark.browser
# What differs in how it looks: a race beside a sliding picture, and a server.
SHOWN = ("05_block_table.ipynb", "20_serving.ipynb")
LESSONS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
THEMES = ("JupyterLab Light", "JupyterLab Dark")
WIDTHS = (1280, 1400)  # of the window, in pixels, with JupyterLab's side bar open as a learner finds it
NARROW = 1100  # charts fit here, too; a table of many columns is scrolled
HEIGHT = 1400
DRAWN_WITHIN = 20  # seconds: a chart has its menu beside it until its style is there

PREPARED = """\
import torch
from course import teach
from roseinfer.generate import begin
from roseinfer.kernels.flat_cases import flat_case
from roseinfer.models import load_model, load_tokenizer
from roseinfer.sequence import SamplingParams
from stages import LADDER, BlockTable
model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
params = SamplingParams(max_tokens=9, ignore_eos=True)
stage = BlockTable(model, num_blocks=12, block_size=8, max_num_seqs=3)
requests = [[5] * 6, [6] * 13, [7] * 3]
flat = flat_case([(17, 1), (0, 11)], block_size=8)"""
CELLS = {
    "prepared": PREPARED,
    "walk_tokens": "teach.walk_tokens(tokenizer, [5] * 6, [7] * 4)",
    "walk_blocks": "teach.walk_blocks(stage, prompts=requests, max_tokens=[9, 16, 5])",
    "walk_slots": "teach.walk_slots(flat.slot_mapping, flat.query_start, flat.context_lens, flat.block_tables, 8)",
    "step_debugger": "teach.step_debugger(stage, begin(stage, requests, params))",
    "online_softmax": "teach.walk_online_softmax(torch.tensor([1.0, 0, 3, 0]), torch.eye(4)[:, :1], block_size=2)",
    "exercise": 'teach.exercise("00.3")',
    "stub": "def kv_bytes(config, num_tokens, bytes_per_value):\n    ...",
    "check": 'teach.check("00.3", kv_bytes)',
    "dashboard": "teach.dashboard(LADDER[:2], batch_size=4, max_new_tokens=200)",
    "meanwhile": "6 * 7",
    "race": "teach.race(LADDER[:2], model, batch_size=2, prompt_len=8, max_new_tokens=8)",
    "map": "teach.course_map(LADDER)",
    "post": 'teach.beside_post("000", "append_after", teach.post_table("000", "append_after"))',
    "chart": """\
import altair, pandas
from roseinfer.display.chart import Chart
tokens = pandas.DataFrame({"batch": [1, 8, 16], "tok/s": [20, 90, 170]})
Chart(altair.Chart(tokens, width=200, height=100).mark_bar().encode(x="batch:O", y="tok/s:Q"), "tokens a second")""",
}
NUMBER = {name: number for number, name in enumerate(CELLS)}
SLIDERS = ("walk_tokens", "walk_blocks", "walk_slots", "step_debugger")

ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
DIRTY = "() => window.jupyterapp.shell.currentWidget.context.model.dirty"
SETTLED_MS = 2000  # for the kernel's answers

LEAST_CONTRAST = 4.5  # WCAG 2, level AA


@pytest.fixture(scope="module")
def lab(browser):
    """One page of one server, for all of them."""
    with running_lab() as url:
        page = browser.new_page(viewport={"width": WIDTHS[0], "height": HEIGHT})
        yield JupyterLab(page, url)
        page.close()


@pytest.fixture(autouse=True)
def nothing_is_said_in_the_console(lab):
    yield
    said, lab.said = lab.said, []  # since the test before: what the notebooks of fixtures say, too
    assert said == [], "\n".join(said)


@pytest.fixture(scope="module")
def idle_kernel(lab):
    """For notebooks that are looked at and not run."""
    return lab.start_kernel()


@pytest.fixture(scope="module")
def small_notebook(lab):
    """The notebook of CELLS, run once."""
    path = new_notebook("small.ipynb", *CELLS.values())
    with lab.notebook(path):
        lab.run_all()
        yield path


@pytest.mark.parametrize("name", in_every_run({name: (name,) for name in LESSONS}, SHOWN))
def test_a_recorded_lesson_fits_the_page_and_can_be_read_in_both_themes(lab, idle_kernel, name):
    with lab.notebook(copy_of(name), kernel=idle_kernel):
        assert_readable_and_fitting(lab, name)
        assert_charts_fit(lab)


def test_what_was_run_has_no_error_fits_the_page_and_can_be_read_in_both_themes(lab, small_notebook):
    assert lab.errors == []
    assert lab.counts == list(range(1, len(CELLS) + 1))  # in order, and no cell left out
    assert_readable_and_fitting(lab, "what was run")
    assert_charts_fit(lab)


@pytest.mark.parametrize("view", SLIDERS)
def test_a_slider_that_is_moved_redraws(lab, small_notebook, view):
    output = lab.output(NUMBER[view])
    step(lab, output)
    lab.screenshot(view)


@pytest.mark.parametrize("trusted", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_pictures_move_in_a_notebook_that_is_opened_without_the_kernel_that_made_them(
    lab, small_notebook, idle_kernel, trusted
):
    chart = lab.output(NUMBER["chart"]).locator(".vega-embed").locator("canvas, svg").first
    chart.scroll_into_view_if_needed()  # which waits for it
    lab.save()
    notebook = nbformat.read(small_notebook, nbformat.NO_CONVERT)
    if not trusted:  # JupyterLab has signed what it ran
        notebook.cells[0].source += "  # changed elsewhere"
    path = small_notebook.with_name("opened.ipynb")
    nbformat.write(notebook, path)
    with lab.notebook(path, kernel=idle_kernel):
        for view in SLIDERS:
            output = lab.output(NUMBER[view])
            assert output.locator("[role=graphics-document]").get_attribute("aria-label")
            step(lab, output)
            before = output.locator("svg").text_content()
            output.get_by_role("button", name="play").click()
            redrawn(lab, output, before)
        chart.wait_for()
        drag_scores(lab, lab.output(NUMBER["online_softmax"]))
        lab.screenshot(f"opened again, {'trusted' if trusted else 'not trusted'}")
    # The dashboard alone is a widget, and its model ended with its kernel.
    lab.said = [said for said in lab.said if not said.startswith("Error: widget model not found")]


def drag_scores(lab: JupyterLab, output) -> None:
    """Drag a score of the online softmax to a lower one, and put it back by a double click."""
    chart, slider = output.locator("svg.marks"), output.locator("input[type=range]")
    chart.filter(has_text="exp(1.00 - 3.00)").wait_for()
    lab.screenshot("online softmax")
    point, lower = (chart.locator(".points_marks path").nth(token) for token in (2, 1))
    point.drag_to(lower)
    chart.filter(has_text="exp(1.00 - 1.00)").wait_for()
    slider.press("ArrowLeft")
    chart.filter(has_text="0.000 × 1.000 + 1.368 = 1.368").wait_for()
    point.dblclick()
    slider.press("ArrowRight")
    chart.filter(has_text="exp(1.00 - 3.00)").wait_for()


@pytest.mark.nightly
def test_a_slider_below_a_chart_keeps_its_arrow_keys(lab):
    cells = ("from course import teach; import torch", "teach.draw_clock_race(torch.tensor([0.6, 0.4]))", "1")
    with lab.notebook(new_notebook("keys.ipynb", *cells)):
        lab.run_all()
        slider = lab.output(1).locator("input[type=range]")
        slider.click()
        active = lab.call(ACTIVE_CELL)
        before = slider.input_value()
        for key in ("ArrowLeft", "ArrowDown"):
            slider.press(key)
        assert int(slider.input_value()) == int(before) - 2
        assert lab.call(ACTIVE_CELL) == active


def test_a_chart_takes_the_ink_of_the_theme_and_has_no_ground_of_its_own(lab, small_notebook):
    chart = lab.output(NUMBER["race"]).locator(".vega-embed svg").first
    chart.scroll_into_view_if_needed()
    inks = set()
    for theme in THEMES:
        lab.choose_theme(theme)
        ink, page, grounds = chart.evaluate(INK_AND_GROUND)
        assert ink == page and grounds == []
        inks.add(ink)
        lab.screenshot(f"a chart, {theme}")
    assert len(inks) == len(THEMES)


def test_a_lesson_that_is_only_opened_is_not_unsaved(lab):
    with lab.notebook(copy_of(LESSONS[0])):
        lab.page.wait_for_timeout(SETTLED_MS)
        assert lab.call(DIRTY) is False


def test_an_exercise_goes_from_not_attempted_to_a_wrong_answers_message_to_pass(lab, small_notebook):
    verdict = lab.output(NUMBER["check"])
    assert "not attempted" in verdict.inner_text()
    right = parse_solutions((ROOT / "notebooks" / "solutions" / "00_start_here.py").read_text())["00.3"].strip()
    wrong = right.replace("2 *", "1 *", 1)
    assert wrong != right
    for answer, wanted in ((wrong, "not yet"), (right, "PASS")):
        lab.run_cell(NUMBER["stub"], answer)
        lab.run_cell(NUMBER["check"])
        verdict.filter(has_text=wanted).wait_for()
        lab.screenshot(f"exercise, {wanted}")


def test_the_dashboard_starts_moves_stops_and_starts_again(lab, small_notebook):
    panel = lab.output(NUMBER["dashboard"]).first  # below it lie its table and its chart
    button = {name: panel.locator("button").filter(has_text=name) for name in ("Start", "Stop")}
    for run in ("first", "again"):
        button["Start"].click()
        panel.filter(has_text="decode step").wait_for()
        changed(lab, panel, panel.inner_text())
        assert lab.run_cell(NUMBER["meanwhile"], f"'{run}', 6 * 7")
        lab.output(NUMBER["meanwhile"]).filter(has_text=f"('{run}', 42)").wait_for()
        changed(lab, panel, panel.inner_text())  # the other cell did not end it
        lab.screenshot(f"dashboard, {run}")
        button["Stop"].click()
        panel.filter(has_text="stopped").wait_for()


@pytest.mark.nightly
def test_a_dashboard_of_an_ended_kernel_keeps_its_results_and_says_how_to_get_its_buttons_back(lab, idle_kernel):
    path = new_notebook("ended.ipynb", CELLS["prepared"], CELLS["dashboard"])
    with lab.notebook(path):
        lab.run_all()
        panel = lab.output(1).first
        panel.locator("button").filter(has_text="Start").click()
        lab.output(1).nth(1).filter(has_text="tok/s").wait_for()
        lab.output(1).nth(2).locator(".vega-embed").wait_for()
        panel.locator("button").filter(has_text="Stop").click()
        panel.filter(has_text="stopped").wait_for()
        lab.save()
    with lab.notebook(path, kernel=idle_kernel):
        lab.output(1).first.filter(has_text="Run the cell again").wait_for()
        lab.output(1).nth(1).filter(has_text="tok/s").wait_for()
        lab.output(1).nth(2).locator(".vega-embed").wait_for()
        lab.screenshot("dashboard, opened again")
    lab.said[:] = [line for line in lab.said if "widget model not found" not in line]  # JupyterLab's own


def step(lab: JupyterLab, output) -> None:
    before = output.locator("svg").text_content()
    output.locator("input[type=range]").press("ArrowRight")
    redrawn(lab, output, before)


def redrawn(lab: JupyterLab, output, before: str) -> None:
    """Wait until the texts of the output's drawing are others than `before`."""
    others = "([element, before]) => element.querySelector('svg').textContent !== before"
    lab.page.wait_for_function(others, arg=[output.element_handle(), before])


def changed(lab: JupyterLab, output, before: str) -> None:
    """Wait until the output's text is another than `before`."""
    redrawn = "([element, before]) => element.innerText !== before"
    lab.page.wait_for_function(redrawn, arg=[output.element_handle(), before])


def assert_readable_and_fitting(lab: JupyterLab, name: str) -> None:
    assert not (wide := too_wide(lab)), f"wider than the page: {wide}"
    for theme in THEMES:
        lab.choose_theme(theme)
        lab.screenshot(f"{name}, {theme}")
        assert not (pale := too_pale(lab)), f"hard to read on the {theme} theme: {pale}"


def assert_charts_fit(lab: JupyterLab) -> None:
    lab.page.set_viewport_size({"width": NARROW, "height": HEIGHT})
    end = monotonic() + DRAWN_WITHIN
    while (wide := lab.page.evaluate(WIDE_CHARTS, THIS_NOTEBOOK)) and monotonic() < end:
        lab.page.wait_for_timeout(100)
    assert not wide, f"pixels that charts lack at {NARROW}: {wide}"


def too_wide(lab: JupyterLab) -> list[tuple[int | str, ...]]:
    """Windows and outputs that have to be scrolled sideways there, or reach over the edge, once they are all drawn."""
    found = []
    for width in reversed(WIDTHS):
        lab.page.set_viewport_size({"width": width, "height": HEIGHT})
        end = monotonic() + DRAWN_WITHIN
        while (wide := lab.page.evaluate(TOO_WIDE, THIS_NOTEBOOK)) and monotonic() < end:
            lab.page.wait_for_timeout(100)
        found += [(width, *words) for words in wide]
    return found


def too_pale(lab: JupyterLab) -> list[tuple[str, ...]]:
    """The tables with a cell that hardly differs from its background."""
    tables = lab.page.locator(f"{THIS_NOTEBOOK} .jp-OutputArea-output table").evaluate_all(CONTRASTS)
    assert len(tables) >= 4, "where are the tables?"
    return [tuple(words) for words, contrast in tables if contrast < LEAST_CONTRAST]


# Compared with the room that JupyterLab gives the output. Code may be scrolled, as in any editor.
TOO_WIDE = """(notebook) => {
  const found = [];
  for (const output of document.querySelectorAll(`${notebook} .jp-OutputArea-output`)) {
    const edge = output.getBoundingClientRect().right + 1;
    const over = [...output.querySelectorAll("*")].filter(
      (part) => part.getBoundingClientRect().right > edge && !part.closest("pre"));
    if (!over.length && output.scrollWidth <= output.clientWidth + 1) continue;
    const heads = [...output.querySelectorAll("th")].slice(0, 3).map((head) => head.innerText);
    found.push(heads.length ? heads : [output.innerText.slice(0, 60)]);
  }
  return found;
}"""

# Pixels that each chart reaches beyond its output.
WIDE_CHARTS = """(notebook) => {
  const right = (element) => element.getBoundingClientRect().right;
  const outputs = [...document.querySelectorAll(`${notebook} .jp-OutputArea-output`)];
  return outputs.flatMap((output) => [...output.querySelectorAll(".vega-embed :is(svg, canvas)")]
    .map((chart) => Math.round(right(chart) - right(output)))).filter((over) => over > 1);
}"""

# The colour of a chart's text, that of the text around it, and the fills of a ground.
INK_AND_GROUND = """(chart) => [
  getComputedStyle(chart.querySelector("text")).fill, getComputedStyle(chart).color,
  [...chart.querySelectorAll(".background")].map((part) => getComputedStyle(part).fill)
    .filter((fill) => !["none", "transparent", "rgba(0, 0, 0, 0)"].includes(fill)),
]"""

# Of each table: its first column heads, and the least contrast of a cell with what lies behind it, as WCAG 2 has it.
CONTRASTS = """(tables) => {
  const rgba = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduceRight((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const part = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const contrast = (cell) => {
    const ground = behind(cell), ink = over(rgba(getComputedStyle(cell).color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const cells = (table) => [...table.querySelectorAll("td, th")].filter((cell) => cell.innerText.trim());
  const heads = (table) => [...table.querySelectorAll("th")].slice(0, 3).map((head) => head.innerText);
  return tables.map((table) => [heads(table), Math.min(...cells(table).map(contrast))]);
}"""
