"""Links: what is a link, what is wrong with one, and that the course has no broken one."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.pages import links
from course.pages.links import Link
from roseinfer.cli.main import main
from roseinfer.paths import ROOT

PAGE = """# A page

## What it says: `x` and more

[one](other.md) ![two](picture.png) <img src="three.png" alt="x"> and <a class="b" href='four.md'>four</a>

| a |
|---|
| [five](five.md) |

[six][ref] `[no](code.md)` [seven](<with space.md>)

```
[no](fence.md)
```

## Twice
## Twice

[ref]: six.md
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    (tmp_path / "notebooks").mkdir()
    cells = [new_markdown_cell("# 01 · A lesson\n\n[a](../page.md)"), new_code_cell("'[no](code.md)'")]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "01.ipynb")
    return path


def test_what_a_link_is(page, tmp_path):
    wanted = ["other.md", "picture.png", "three.png", "four.md", "five.md", "six.md", "with%20space.md"]
    assert [link.target for link in links.links(page)] == wanted
    assert [link.target for link in links.links(tmp_path / "notebooks" / "01.ipynb")] == ["../page.md"]


def test_where_links_are_looked_for(page, tmp_path):
    (tmp_path / "teaching" / "deeper").mkdir(parents=True)
    (tmp_path / "teaching" / "deeper" / "a.md").touch()
    found = [path.relative_to(tmp_path).as_posix() for path in links.pages(tmp_path)]
    assert found == ["page.md", "teaching/deeper/a.md", "notebooks/01.ipynb"]
    assert {"README.md", "teaching/README.md", "notebooks/00_start_here.ipynb"} <= {
        path.relative_to(ROOT).as_posix() for path in links.pages(ROOT)
    }


@pytest.mark.parametrize(
    "target",
    [
        "page.md",
        "notebooks",
        "#a-page",
        "page.md#what-it-says-x-and-more",
        "#twice",
        "#twice-1",
        "notebooks/01.ipynb#01-·-A-lesson",
        "https://example.org/page?x=1#y",
        "mailto:author@example.org",
    ],
)
def test_nothing_is_wrong(page, target):
    assert links.problem(Link(page, target), page.parent) == ""


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing.md", "no such file"),
        ("Page.md", "no such file"),
        ("#twice-2", "no such heading; there are: a-page, what-it-says-x-and-more, twice, twice-1"),
        ("notebooks#x", "no such heading; there are: none"),
        ("../outside.md", "leads out of the repository"),
        ("https:///page", "an address without a host"),
        ("https://OWNER/page", "an address without a host"),
        ("ftp://example.org", "neither a file"),
    ],
)
def test_what_is_wrong_is_said(page, target, message):
    assert links.problem(Link(page, target), page.parent).startswith(message)


def test_the_course_has_no_broken_link(capsys):
    assert main(["links"]) == 0, capsys.readouterr().err
    assert "0 broken" in capsys.readouterr().out


def test_a_broken_link_is_named_and_fails(page, monkeypatch, capsys):
    monkeypatch.setattr("course.cli.links.ROOT", page.parent)
    monkeypatch.setattr(links, "pages", lambda root: [page])
    assert main(["links"]) == 1
    said = capsys.readouterr()
    assert "page.md: other.md: no such file" in said.err and "7 links, 7 broken" in said.out


def test_only_online_asks_the_web(page, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr("course.cli.links.ROOT", page.parent)
    monkeypatch.setattr(links, "pages", lambda root: [page])
    monkeypatch.setattr(links, "no_answer", lambda address: asked.append(address) or "it is gone")
    page.write_text("[a](https://example.org/a) [b](https://example.org/a) [c](https://example.org/c)")
    assert main(["links"]) == 0 and not asked
    assert main(["links", "--online"]) == 1
    assert asked == ["https://example.org/a", "https://example.org/c"]
    assert capsys.readouterr().err.count("it is gone") == 2


def test_an_address_is_asked_for_its_header_for_a_limited_time(monkeypatch):
    def refuse(request, timeout):
        assert (request.get_method(), request.full_url) == ("HEAD", "https://example.org/a")
        assert timeout == links.TIMEOUT
        raise TimeoutError("too slow")

    monkeypatch.setattr(links.urllib.request, "urlopen", refuse)
    assert links.no_answer("https://example.org/a") == "too slow"
