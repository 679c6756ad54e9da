"""How tests look at what a cell shows, and run one."""

from __future__ import annotations

import linecache
from html.parser import HTMLParser


class Balance(HTMLParser):
    """Every tag is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def views(shown) -> tuple[str, str]:
    """text/plain, and the readable text of text/html."""
    bundle = shown._repr_mimebundle_()
    assert bundle["text/plain"] == repr(shown)
    parser = Balance()
    parser.feed(bundle["text/html"])
    assert parser.open == []
    return bundle["text/plain"], "".join(parser.text)


def in_cell(source: str, **names) -> dict:
    """Run source as a kernel runs a cell: in the module __main__, with its text known to linecache alone."""
    filename = f"<cell {hash(source)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, filename, "exec"), namespace)
    return namespace
