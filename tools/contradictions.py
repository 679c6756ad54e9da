"""Finds contradictions in and between recorded notebooks, as far as their outputs show them without a run.

Exact facts are compared as they stand in text/plain, floors within the gate of tools.quiet.
"""

from __future__ import annotations

import ast
import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median
from typing import Any, NamedTuple

import torch
from nbformat import NotebookNode

from roseinfer.bench.neighbours import apart
from roseinfer.display.chart import VEGA_LITE
from roseinfer.models import model_config
from roseinfer.models.config import ModelConfig
from roseinfer.profiling import decode_floor
from roseinfer.profiling.floors import ARITHMETIC, MIB, READING

FAILED = re.compile(r": False\b|does not explain it")
PROVED = re.compile(r"(s\d\d_\w+): tokens against both oracles")
RACED = re.compile(r"(\d+) sequences?, prompt of \d+ tokens?, \d+ new tokens each, float32")
CONTEXT = re.compile(r"Floor of a step at context (\d+):")
FLOOR = re.compile(rf"Floor of a step at context (\d+): ([\d.]+) ms, [\d,]+ tok/s, set by ({READING}|{ARITHMETIC})")
RACED_MODEL = re.compile(r"teach\.race\((?:\[[^\]]*\]|\w+),\s*(\w+)")
LOADED = re.compile(r"""^(\w+) = load_model\(["']([^"']+)""", re.MULTILINE)
MEASURED = re.compile(r"(?:the same (\d+) MiB[^<]*|matrix product[^<]*)<[^\d]*?>([\d,.]+) (?:GB|GFLOP)/s")
COUNTS = ("copies", "cats", "selects")
BLOCK_SIZE = 64
CAPTURED = re.compile(r"\b([1-9]\d*) graphs captured meanwhile|graphs captured meanwhile: ([1-9]\d*)")
REPLAYED = "replayed"
FAR, MANY = 2, 0.1  # times the median; the share of steps above that by which captures are told from a busy moment
LITERALS = (ast.List, ast.BinOp, ast.Constant, ast.operator, ast.expr_context)


class Said(NamedTuple):
    """A statement: its cell among all cells, its subject, and the value stated."""

    where: str
    about: Any
    value: Any


def failed_checks(nb: NotebookNode) -> list[str]:
    """List the lines in which a cell says that something is not as claimed, each with its cell; exercises are left out.

    Such a line is a printed `: False`, a formula that does not explain its number, or a course stage with wrong tokens.
    """
    failed = []
    for number, cell in enumerate(nb.cells):
        if cell.cell_type == "code" and "exercise" not in cell.metadata.get("tags", []):
            for text in texts(cell):
                of_a_stage = PROVED.match(text) or RACED.match(text)
                lines = [line for line in text.splitlines() if FAILED.search(line) or of_a_stage and "differs" in line]
                failed += [f"cell {number}: {line.strip()}" for line in lines]
    return failed


def cold_timings(nb: NotebookNode) -> list[str]:
    """List timed objects that were not warm, each with its cell.

    These are runs that say that they captured graphs, and charts whose steps are called replayed, though many take as
    long as a capture.
    """
    found = []
    for number, cell in enumerate(nb.cells):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for text in (output.get("text", ""), data.get("text/plain", "")):
                found += [f"cell {number}: {match[0]}" for match in CAPTURED.finditer(text)]
            times = replayed_times(data.get(VEGA_LITE, {}))
            slow = [ms for ms in times if ms > FAR * median(times)]
            if len(slow) > MANY * len(times):
                found.append(f"cell {number}: {len(slow)} of {len(times)} replayed steps take over {FAR} x the median")
    return found


def replayed_times(spec: dict[str, Any]) -> list[float]:
    """List the times in ms of a step-time chart's points (draw_step_times) whose step is said to be replayed."""
    values = spec.get("data", {}).get("values", "")
    rows = list(csv.DictReader(io.StringIO(values))) if isinstance(values, str) else []
    return [float(row["ms"]) for row in rows if REPLAYED in (row.get("step") or "") and "ms" in row]


def counts(name: str, nb: NotebookNode) -> Iterator[Said]:
    """Yield the ops of one decode step, from races and compare_shapes; what stands twice has to be the same.

    Each stands under its row's name; for sequences of one length also under the stage, the model's name in this
    notebook, the number of sequences, and the blocks that each of them fills.
    """
    for number, cell in enumerate(nb.cells):
        if cell.cell_type != "code":
            continue
        where = f"{name}[{number}]"
        called = call(cell.source, ("race", "compare_shapes"))
        for output in cell.outputs:
            data = output.get("data", {})
            title, rows = table(data.get("text/plain", ""))
            if not rows or called is None or not {"stage", *COUNTS} <= rows[0].keys():
                continue
            raced, context = RACED.match(title), CONTEXT.search(data.get("text/html", ""))
            lengths = {} if raced else literal_lists(cell.source)
            for row in rows:
                ops = tuple(row[op] for op in COUNTS)
                if not any(ops):
                    continue  # transformers' ops are not counted
                shape = title if raced else (row["batch"], row["cached tokens"])
                yield Said(where, (row["stage"], shape), ops)
                cached = [int(context[1]) - 1] * int(raced[1]) if raced else lengths.get(row["batch"], [])
                if len(set(cached)) == 1:
                    blocks = -(-cached[0] // BLOCK_SIZE)
                    about = f"{len(cached)} sequences of {blocks} blocks"
                    yield Said(where, (name, row["stage"], called, about), ops)


def rates(name: str, nb: NotebookNode, config: ModelConfig) -> Iterator[Said]:
    """Yield the machine's rates in 1e9 a second: as printed, and as the floors of races imply.

    A race is of the model that it names, if the notebook loads that one under this name, else of config's. What is
    read again and again has a rate for each power of two of MiB, since caches have sizes.
    """
    loaded = dict(match for cell in nb.cells for match in LOADED.findall(cell.source))
    for number, cell in enumerate(nb.cells):
        model = RACED_MODEL.search(cell.source)
        spec = loaded.get(model[1]) if model else None
        raced_config = model_config(spec) if spec else config
        for output in cell.get("outputs", []):
            text, html = (output.get("data", {}).get(kind, "") for kind in ("text/plain", "text/html"))
            where = f"{name}[{number}]"
            if text.startswith("This machine"):
                for mib, rate in MEASURED.findall(html):
                    yield Said(where, f"{READING} {mib} MiB" if mib else ARITHMETIC, float(rate.replace(",", "")))
            raced, floor = RACED.match(text), FLOOR.search(html)
            if raced and floor:
                work = decode_floor(raced_config, [int(floor[1])] * int(raced[1]), torch.float32)
                least = work.weight_bytes + work.kv_bytes
                mib = 1 << (least // MIB).bit_length() - 1
                about, done = (ARITHMETIC, work.flops) if floor[3] == ARITHMETIC else (f"{READING} {mib} MiB", least)
                yield Said(where, about, done / float(floor[2]) / 1e6)


def contradictions(said: Iterable[Said]) -> list[str]:
    """Find what is stated twice and differently: numbers that lie `apart`, and other values that are not equal."""
    by_subject = defaultdict(list)
    for one in said:
        by_subject[one.about].append(one)
    found = []
    for about, ones in by_subject.items():
        first = ones[0]
        for one in ones[1:]:
            numbers = isinstance(one.value, float)
            if apart(one.value, first.value) if numbers else one.value != first.value:
                found.append(f"{about}: {first.value} in {first.where}, {one.value} in {one.where}")
    return found


def texts(cell: NotebookNode) -> list[str]:
    """List the plain texts of a code cell, one per output."""
    return [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]


def table(text: str) -> tuple[str, list[dict[str, str]]]:
    """Parse title and rows of a Table's text/plain, whose columns stand above dashes; no rows if it is no table."""
    lines = text.splitlines()
    dashes = next((n for n, line in enumerate(lines) if n and re.fullmatch(r"-+(  +-+)*", line)), None)
    if dashes is None:
        return "", []
    columns = [match.span() for match in re.finditer("-+", lines[dashes])]
    names, *rows = ([line[start:end].strip() for start, end in columns] for line in lines[dashes - 1 :] if line)
    return "\n".join(lines[: dashes - 1]), [dict(zip(names, row, strict=True)) for row in rows[1:]]


def call(source: str, functions: tuple[str, ...]) -> str | None:
    """Return the source of the second argument, the model, of the first call of teach.<one of functions>."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in functions:
            return ast.unparse(node.args[1])
    return None


def literal_lists(source: str) -> dict[str, list[int]]:
    """Collect the items of dicts in the source that are lists of numbers, written such as [8] * 7 + [200]."""
    found = {}
    for node in ast.walk(ast.parse(source)):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            of_numbers = all(isinstance(part, LITERALS) for part in ast.walk(value))
            if isinstance(key, ast.Constant) and of_numbers and isinstance(value, (ast.List, ast.BinOp)):
                found[key.value] = eval(compile(ast.Expression(value), "a cell", "eval"), {"__builtins__": {}})
    return found
