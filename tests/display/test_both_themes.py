"""Pictures that lie on the page itself: no background of their own, and an ink that reads on white and on dark."""

from __future__ import annotations

import base64
import io
import re
import shutil

import pytest
from PIL import Image

from course import teach
from course.teach.journal.predictions import Guess, Predictions
from roseinfer.paths import DATA

pytestmark = pytest.mark.slow

PAGES = {"light": (255, 255, 255), "dark": (17, 17, 17)}  # of JupyterLab's themes
LEAST_CONTRAST = 3.9  # no grey has more than 4.35 on both


def of_guesses(folder=None):
    return pictures_in(Predictions([Guess("copies", 5, 10), Guess("launches", 30, 10)], 0).to_html())


def of_a_recorded_run(folder):
    (folder / "online").mkdir()
    shutil.copy(DATA / "online" / "budgets-fp32.json", folder / "online")
    return pictures_in(teach.recorded_online(folder).to_html())


@pytest.mark.parametrize("pictures", [of_guesses, of_a_recorded_run])
def test_a_picture_on_the_page_reads_on_both_themes(pictures, tmp_path):
    found = pictures(tmp_path)
    assert found
    for png in found:
        picture = Image.open(io.BytesIO(png)).convert("RGBA")
        pixels = picture.getcolors(picture.width * picture.height)
        assert sum(count for count, (*_, opacity) in pixels if not opacity) > picture.width * picture.height / 2
        inks = {red for _, (red, green, blue, opacity) in pixels if red == green == blue and opacity == 255}
        assert inks
        for theme, page in PAGES.items():
            pale = [ink for ink in inks if contrast((ink, ink, ink), page) < LEAST_CONTRAST]
            assert not pale, f"hard to read on the {theme} theme: {pale}"


def test_colours_show_the_page_through_as_they_would_on_it():
    (png,) = of_guesses()
    picture = Image.open(io.BytesIO(png))
    shades = {pixel[:3] for _, pixel in picture.getcolors(10**6) if pixel[3] == 64}  # a quarter: "within a factor of 2"
    assert any(max(abs(a - b) for a, b in zip(shade, (86, 180, 233), strict=True)) < 8 for shade in shades)


def pictures_in(html):
    return [base64.b64decode(found) for found in re.findall('src="data:image/png;base64,(.*?)"', html)]


def contrast(one, other):
    """As WCAG 2 defines it."""
    low, high = sorted(map(light, (one, other)))
    return (high + 0.05) / (low + 0.05)


def light(colour):
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
