"""What the book makes of a page, without building it."""

from __future__ import annotations

import nbformat
import pytest

from roseinfer.paths import ROOT

pytest.importorskip("sphinx", reason="the book is built with Python 3.11 or newer")

from tools.book.launch import check_repository
from tools.book.lesson_page import to_page
from tools.book.links import rewrite_links
from tools.colab import write_all
from tools.shape import lessons


def test_without_a_repository_there_are_no_buttons():
    nb = nbformat.read(lessons()[5], as_version=4)
    page = to_page(nb, {}, "notebooks/05_block_table.ipynb", set())
    assert "launch" not in page.cells[0].source
    with pytest.raises(ValueError, match="repository must be OWNER/NAME, got 'https://"):
        check_repository("https://github.com/someone/course")


@pytest.mark.parametrize(("number", "call"), [(0, "teach.race_texts("), (1, "with_hf=True")])
def test_a_result_that_answers_a_prediction_is_folded(number, call):
    nb = nbformat.read(lessons()[number], as_version=4)
    page = to_page(nb, {}, f"notebooks/{lessons()[number].name}", set())
    folded = [cell.source for cell in page.cells if "hide-output" in cell.metadata.get("tags", [])]
    assert len(folded) == 1 and call in folded[0]


@pytest.mark.slow
def test_colabs_copies_begin_with_a_set_up_cell_and_are_the_lessons_otherwise(tmp_path):
    write_all(tmp_path, "someone/course")
    assert sorted(path.name for path in (tmp_path / "notebooks").iterdir()) == [path.name for path in lessons()]
    for path in lessons()[:3]:
        first, *rest = nbformat.read(tmp_path / "notebooks" / path.name, as_version=4).cells
        assert rest == nbformat.read(path, as_version=4).cells
        assert "git clone --quiet --depth 1 https://github.com/someone/course roseinfer\n" in first.source
        script = first.source.splitlines()[-1].removeprefix("%run roseinfer/")
        assert (ROOT / script).is_file()


PAGES = {"notebooks/00_start_here.ipynb", "docs/trust.md"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see [lesson 00](00_start_here.ipynb#predict)", "see [lesson 00](00_start_here.ipynb#predict)"),
        ("see [trust](../docs/trust.md)", "see [trust](../docs/trust.md)"),
        ("see [`stage.py`](../roseinfer/stage.py), then", "see `stage.py`, then"),
        ("[a](https://example.com) [b](#here)", "[a](https://example.com) [b](#here)"),
        ("![All stages](../docs/requests.png)", "![All stages](../docs/requests.png)"),
        ("[of [B, H]](../stages)", "of [B, H]"),
    ],
)
def test_links_to_what_the_book_has_not_are_texts(text, wanted):
    assert rewrite_links(text, "notebooks/01_naive_cat.ipynb", PAGES) == wanted
