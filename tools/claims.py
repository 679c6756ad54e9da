"""Checks that a section shows what its heading claims: "Prove it faster" and "Where it loses" against their own tables.

A claim that the run may refute has to be computed (teach.say): then the page says what this run shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

COMPUTED = "computed from this run"  # how the text/plain of teach.say begins
GAIN, LOSS = "## Prove it faster", "## Where it loses"
ROW, CELL = re.compile(r"<tr\b.*?</tr>", re.DOTALL), re.compile(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", re.DOTALL)
SPEED, AGAINST = "speed", "against the first"


def unproved_claims(nb: NotebookNode, lesson: str) -> list[str]:
    """Find each heading whose claim the lesson's tables refute, with its cell among all cells.

    It promises a gain where the lesson's stage is slower, or a loss where no row of compare_shapes is slower, and no
    computed sentence says so. The prose may also deny a gain: what is always slower need not be computed. lesson: two
    digits, as in s09_numba_paged.
    """
    found = []
    for heading, cells in claims(nb):
        shown = [(n, table) for n, cell in cells for table in tables(cell)]
        if any(text.startswith(COMPUTED) for _, cell in cells for text in plain_texts(cell)):
            continue
        if heading == GAIN and "slower" not in prose_after(nb, cells):
            said = ((n, slower_last(table, lesson)) for n, table in shown)
            found += [f"cell {n}: {GAIN[3:]}, and {slower}" for n, slower in said if slower]
        elif heading == LOSS and (speeds := [speed for _, table in shown for speed in speeds_of(table)]):
            if min(speeds) >= 1:
                found.append(f"cell {shown[0][0]}: {LOSS[3:]}, and nothing in it is slower")
    return found


def claims(nb: NotebookNode) -> Iterator[tuple[str, list[tuple[int, NotebookNode]]]]:
    """Yield (heading, its code cells with their numbers) for each claim.

    A claim is a section that claims a gain, and each point, which begins in bold, of a section that claims losses.
    """
    heading, cells = "", []
    for number, cell in enumerate(nb.cells):
        if cell.cell_type == "code":
            cells.append((number, cell))
            continue
        for line in cell.source.splitlines():
            new_section = line.startswith("## ")
            if new_section or (heading == LOSS and line.startswith("**")):
                if heading in (GAIN, LOSS):
                    yield heading, cells
                cells = []
            if new_section:
                heading = line.strip()
    if heading in (GAIN, LOSS):
        yield heading, cells


def prose_after(nb: NotebookNode, cells: list[tuple[int, NotebookNode]]) -> str:
    """Return the first text after the cells of a claim's first table."""
    texts = [cell.source for cell in nb.cells[cells[0][0] :] if cell.cell_type == "markdown"] if cells else []
    return texts[0] if texts else ""


def slower_last(table: list[dict[str, str]], lesson: str) -> str:
    """Return the race's sentence on the lesson's stage if it is slower than the first stage; else ""."""
    said = {row["stage"]: row[AGAINST] for row in table if AGAINST in row and row["stage"].startswith(f"s{lesson}_")}
    return "; ".join(f"{stage} is {verdict}" for stage, verdict in said.items() if "slower" in verdict)


def speeds_of(table: list[dict[str, str]]) -> list[float]:
    """List the speeds of a compare_shapes table, without the rows that the others are compared with."""
    ratio = re.compile(r"×\d+\.\d+")
    shown = [float(row[SPEED][1:]) for row in table if "stage" in row and ratio.fullmatch(row.get(SPEED, ""))]
    return [speed for speed in shown if speed != 1]


def tables(cell: NotebookNode) -> Iterator[list[dict[str, str]]]:
    """Yield the rows of each table in a cell's live view, as dicts by column name."""
    for output in cell.outputs:
        page = "".join(output.get("data", {}).get("text/html", "")).split("<details>")[0]
        rows = [[re.sub(r"<[^>]*>", "", text).strip() for text in CELL.findall(row)] for row in ROW.findall(page)]
        if rows:
            yield [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def plain_texts(cell: NotebookNode) -> Iterator[str]:
    for output in cell.outputs:
        yield "".join(output.get("data", {}).get("text/plain", ""))
