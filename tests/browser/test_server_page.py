"""The server's page in a real browser: it streams, stops, shows the engine and errors; light, dark and narrow."""

from __future__ import annotations

import re
import sys

import pytest
from lab import ROOT, SCRATCH

sys.path.append(str(ROOT / "tests" / "server"))
from running import SIZES, Gate, running_server  # noqa: E402

from roseinfer.llm.llm import LLM  # noqa: E402
from roseinfer.sequence import SamplingParams  # noqa: E402

pytestmark = pytest.mark.browser
LOOKS = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
LEAST_CONTRAST = 4.5  # WCAG 2, level AA
CONTRASTS = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((v) => v / 255)
      .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const own = getComputedStyle(element).backgroundColor;
    return own === "rgba(0, 0, 0, 0)" && element.parentElement ? ground(element.parentElement) : own;
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.matches(":disabled")
    && [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) && !e.matches("script, style, option"));
  return texts.map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), e.tagName + " " + e.textContent.trim().slice(0, 20)];
  });
}"""


@pytest.fixture(scope="module")
def server():
    with running_server() as running:
        yield running


@pytest.fixture
def page(browser, server):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    said = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(server.url)
    page.locator("#status").filter(has_text="ready").wait_for()
    yield page
    page.close()
    assert [text for text in said if "400 (Bad Request)" not in text] == []


def offline(prompt: str, max_tokens: int) -> str:
    [output] = LLM("tiny", **SIZES).generate([prompt], SamplingParams(max_tokens=max_tokens), use_tqdm=False)
    return output.outputs[0].text


def test_it_streams_the_offline_text_and_tells_its_times(page):
    page.fill("#prompt", "Return a new")
    page.fill("#max_tokens", "40")
    page.click("#go")
    page.locator("#timing").filter(has_text="tokens/s after it").wait_for()
    assert page.locator("#answer").text_content() == "Return a new" + offline("Return a new", 40)
    assert page.locator("#model").text_content() == "tiny"
    page.locator("#ttft50").filter(has_text=re.compile(r"\d")).wait_for()  # the page lets no waiting script in
    page.locator("#num_requests").filter(has_text="0").wait_for()
    assert int(page.locator("#free").text_content()) + int(page.locator("#cached").text_content()) == 64
    assert page.locator("#line").get_attribute("points")


def test_it_shows_what_runs_and_stop_aborts_it(page, server):
    aborted = server.engine.latencies.ended_by["abort"]
    page.fill("#max_tokens", "480")
    page.fill("#prompt", "If")
    with Gate(server) as gate:
        page.click("#go")
        server.wait_for(lambda: len(server.engine.streams) == 1)
        gate.let(5)
        page.locator("#running").filter(has_text="1").wait_for()
        page.locator("#requests").filter(has_text="of at most 480 out").wait_for()
        page.locator("#answer").filter(has_text=re.compile(r".{5}", re.DOTALL)).wait_for()
        assert page.locator("#held").text_content() == "1" and page.locator("#go").is_disabled()
        page.screenshot(path=SCRATCH / "server, running.png", full_page=True)
        page.click("#cancel")
        page.locator("#timing").filter(has_text="stopped").wait_for()
        assert page.locator("#go").is_enabled()
    server.wait_until_idle()
    assert server.engine.latencies.ended_by["abort"] == aborted + 1


def test_with_the_key_it_shows_the_models_name_and_the_engine(browser):
    with running_server(api_key="rose-key") as locked:
        page = browser.new_page()
        page.goto(locked.url)
        page.locator("#status").filter(has_text="this server asks for its key").wait_for()
        assert page.locator("#model").text_content() == ""
        page.fill("#key", "rose-key")
        page.locator("#status").filter(has_text="ready").wait_for()
        assert page.locator("#model").text_content() == "tiny" and page.locator("#free").text_content() == "64"
        page.close()


def test_an_error_is_shown_in_the_servers_words(page):
    page.select_option("#kind", "chat")
    page.click("#go")
    page.locator("#error").filter(has_text="no chat template").wait_for()
    assert page.locator("#go").is_enabled()


def test_it_can_be_read_and_fits(page):
    page.fill("#max_tokens", "60")
    page.click("#go")
    page.locator("#timing").filter(has_text="tokens/s after it").wait_for()
    page.wait_for_timeout(1200)  # two looks at the engine
    for theme, width in LOOKS:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        page.screenshot(path=SCRATCH / f"server, {theme}, {width}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        low = [found for found in page.evaluate(CONTRASTS) if found[0] < LEAST_CONTRAST]
        assert low == [], (theme, width)
