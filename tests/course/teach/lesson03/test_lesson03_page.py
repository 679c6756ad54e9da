"""Lesson 03: what its page compares is alike, and what it calls the same is."""

from __future__ import annotations

import nbformat
from notebook_text import table, texts

from roseinfer.paths import ROOT


def test_the_ops_of_the_append_are_the_same_wherever_the_lesson_shows_them():
    nb = nbformat.read(ROOT / "notebooks" / "03_select_append.ipynb", as_version=4)
    page = [text for cell in nb.cells if cell.cell_type == "code" for text in texts(cell)]
    [profiled] = [
        rows for title, rows in map(table, page) if title == "aten ops in the first roseinfer.kv.append_token"
    ]
    ops = {row["name"].removeprefix("aten::"): int(row["n"]) for row in profiled}
    [grouped] = [rows for _, rows in map(table, page) if rows and rows[0].get("name") == "only a view"]
    assert {row["name"]: int(row["n"]) for row in grouped} == {
        "only a view": ops["select"] + ops["slice"],
        "moves bytes": ops["copy_"],
    }
    [counted] = [text for text in page if text.startswith("selects before:")]
    assert counted.startswith(f"selects before: {ops['select']} ")
    assert f"copies before and after: {ops['copy_']} {ops['copy_']}\n" in counted
