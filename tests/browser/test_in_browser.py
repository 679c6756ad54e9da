"""The course as a learner meets it: JupyterLab by the README's command, in a real browser.

Screenshots stay in build/browser/. Skipped, with the reason, where there is no Chromium (tools/browser.sh).
"""

from __future__ import annotations

import pytest
from lab import (
    FLAGS,
    ROOT,
    SCRATCH,
    chromium,
    code_cells,
    errors_of,
    menu,
    run_all,
    running_lab,
    scratch_copy,
    served_as,
    small_notebook,
)  # fmt: skip

from tools.solutions import parse_solutions

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium here: install it (apt install chromium) to run the browser suite"
)
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def lab():
    with running_lab() as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1280, "height": 1400})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    yield opened
    context.close()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_run_all_leaves_no_error_and_no_cell_out(page, lab, name):
    path = scratch_copy(name)
    notebook = run_all(page, lab, path)
    page.screenshot(path=SCRATCH / f"{path.stem}.png")
    lab.shut_down(served_as(path))
    assert errors_of(notebook) == []
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(counts[0], counts[0] + len(counts)))  # in order, and no cell left out


def write_cell(page, number: int, source: str) -> None:
    """Put `source` in the place of what code cell `number` holds."""
    page.locator(".jp-CodeCell .cm-content").nth(number).click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)


def test_an_exercise_goes_from_not_attempted_to_a_wrong_answers_message_to_pass(page, lab):
    stub = "def kv_bytes(config, num_tokens, bytes_per_value):\n    ..."
    path = small_notebook(
        "exercise.ipynb", "from roseinfer import teach", 'teach.exercise("00.1")', stub, 'teach.check("00.1", kv_bytes)'
    )
    run_all(page, lab, path)
    verdict = page.locator(".jp-OutputArea-output").last
    assert "not attempted" in verdict.inner_text()

    right = parse_solutions((ROOT / "notebooks" / "solutions" / "00_start_here.py").read_text())["00.1"]
    wrong = right.replace("2 *", "1 *", 1)
    assert wrong != right
    for answer, wanted in ((wrong, "not yet"), (right, "PASS")):
        write_cell(page, 2, answer.strip())
        menu(page, "Run", "Run All Cells")
        verdict.filter(has_text=wanted).wait_for()
        page.screenshot(path=SCRATCH / f"exercise, {wanted}.png")
    lab.shut_down(served_as(path))


VIEWS = {
    "walk_blocks": "teach.walk_blocks(stage, prompts=[[5] * 6, [6] * 13, [7] * 3], max_tokens=[9, 16, 5])",
    "walk_tables": "teach.walk_tables(stage, prompts=[[5] * 6, [6] * 13, [7] * 3], max_tokens=[9, 16, 5])",
    "block_view": "schedule = teach.record_schedule(BlockTable, model, [[5] * 6, [6] * 13], params, num_blocks=12, "
    "block_size=8, max_num_seqs=3)\nteach.block_view(schedule)",
    "step_debugger": "teach.step_debugger(stage, begin(stage, [[5] * 6, [6] * 13], params))",
}
PREPARED = """\
from roseinfer import teach
from roseinfer.generate import begin
from roseinfer.models import load_model
from roseinfer.sequence import SamplingParams
from stages import BlockTable
model = load_model("tiny")
params = SamplingParams(max_tokens=9, ignore_eos=True)
stage = BlockTable(model, num_blocks=12, block_size=8, max_num_seqs=3)"""


@pytest.mark.parametrize("view", VIEWS)
def test_a_slider_redraws(page, lab, view):
    path = small_notebook(f"{view}.ipynb", PREPARED, VIEWS[view])
    notebook = run_all(page, lab, path)
    assert errors_of(notebook) == []
    output = page.locator(".jp-OutputArea-output").last
    shown = output.inner_text()
    handle = page.locator(".widget-slider .noUi-handle").last
    handle.focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("([element, before]) => element.innerText !== before", arg=[output.element_handle(), shown])
    page.screenshot(path=SCRATCH / f"{view}.png")
    lab.shut_down(served_as(path))


# The contrast of each cell of a table with what lies behind it, as WCAG 2 reckons it; the least of them.
LEAST_CONTRAST = """(table) => {
  const rgba = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reduceRight((under, top) => over(top, under), [255, 255, 255, 1]);
  };
  const part = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const cells = [...table.querySelectorAll("td, th")].filter((cell) => cell.innerText.trim());
  return Math.min(...cells.map((cell) => {
    const ground = behind(cell), ink = over(rgba(getComputedStyle(cell).color), ground);
    const [high, low] = [light(ink), light(ground)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }));
}"""


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_tables_are_readable_in_both_themes(page, lab, theme):
    path = small_notebook(
        f"{theme}.ipynb",
        PREPARED,
        "from roseinfer.bench import ladder\nladder([BlockTable], model, max_new_tokens=4, repeats=1)",
        "from stages import LADDER\nteach.course_map(LADDER)",
        'teach.beside_post("000", "append_after", teach.post_table("000", "append_after"))',
    )
    notebook = run_all(page, lab, path)
    assert errors_of(notebook) == []
    choose_theme(page, theme)
    tables = page.locator(".jp-OutputArea-output table")
    assert tables.count() >= 3
    page.screenshot(path=SCRATCH / f"{theme}.png")
    contrasts = [table.evaluate(LEAST_CONTRAST) for table in tables.all()]
    assert min(contrasts) >= 4.5, contrasts  # WCAG 2, level AA
    lab.shut_down(served_as(path))


def choose_theme(page, theme: str) -> None:
    page.click('.lm-MenuBar-itemLabel:text-is("Settings")')
    page.hover('.lm-Menu-itemLabel:text-is("Theme")')
    page.click(f'.lm-Menu-itemLabel:text-is("{theme}")')
    page.wait_for_selector(f'body[data-jp-theme-name="{theme}"]', state="attached")
    page.wait_for_selector("#jupyterlab-splash", state="detached")


def test_the_dashboard_decodes_stops_and_frees_every_block(page, lab):
    panel_cell = "from stages import LADDER\nteach.dashboard(LADDER[:2], max_new_tokens=400, repeat=True)"
    path = small_notebook("dashboard.ipynb", "from roseinfer import teach", panel_cell, "print(6 * 7)")
    notebook = run_all(page, lab, path)
    assert errors_of(notebook) == []
    live = page.locator(".rose-live")
    page.click('button:text-is("Start")')
    live.filter(has_text="tok/s").wait_for()
    seen = set()
    while len(seen) < 8:  # the numbers move; a page that stands still runs into the test's deadline
        seen.add(live.inner_text())
        page.wait_for_timeout(100)
    page.click('button:text-is("Pin as baseline")')
    live.filter(has_text="baseline:").wait_for()
    page.screenshot(path=SCRATCH / "dashboard.png")
    write_cell(page, 2, "print(5 * 5)")  # another cell runs meanwhile
    page.keyboard.press("Shift+Enter")
    page.locator('[data-mime-type="application/vnd.jupyter.stdout"]').filter(has_text="25").wait_for()
    page.click('button:text-is("Stop")')
    live.filter(has_text="every block is free").wait_for()
    page.click('button:text-is("Start")')
    live.filter(has_text="decode step").wait_for()
    page.click('button:text-is("Stop")')
    live.filter(has_text="every block is free").wait_for()
    page.screenshot(path=SCRATCH / "dashboard, stopped.png")
    lab.shut_down(served_as(path))
