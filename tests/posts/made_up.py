"""A report of a reproduction, made up."""

from __future__ import annotations

from dataclasses import replace

from roseinfer.posts.data import Source
from roseinfer.posts.report import Grid, Image, NotRun, PostReport, Section, Time, judge

COMMAND = "roseinfer reproduce 000 --device cpu"
PNG = b"\x89PNG\r\n\x1a\n and so on"
EQUAL_FACT = judge("aten::copy_", 192, 192, rule=0, why="never asked for")
EXPLAINED_FACT = judge("aten::slice", 1536, 384, rule=384, why="torch 2.13: no slice for `:`")
DIFFERENT_FACT = judge("a|b <rows>", "x & y", 768, rule=0, why="one table")
STATED, SEEN = Source("stated", "its table"), Source("repository", "engine.py, <append>")
COMPUTED, INFERRED = Source("computed", "28 layers x 8"), Source("inferred", "what fits")
ABOUT = {"title": "Performance", "model": "GPT-2 <small>", "hardware": "a GPU", "torch": None, "command": "run *it*"}
SOURCES = {"model": {"kind": "inferred", "from": "a file's name"}, "hardware": {"kind": "stated", "from": "part 1"}}
REPORT = PostReport(
    post="000",
    about={**ABOUT, "sources": SOURCES},
    arguments={"device": "cpu", "quick": False},
    sections=[
        Section(
            "Ops of `append_token`",
            text=["Counts of one step, a < b.", "# not a heading"],
            code="SELECT '```' AS fence\nFROM slice",
            facts=[EQUAL_FACT, EXPLAINED_FACT],
            samples={"runs": [0.1, 0.25]},
        ),
        Section(
            "Times",
            times=[
                Time("completion", "tok/s", 408.43, 61.1712, floor=244.6848),
                Time("step", "ms", 12.463, 61.3345, floor=15.333625),
                Time("TPOT", "ms", 15.32, None),
            ],
            images=[Image(PNG, 'bars of "both" <spans>')],
        ),
        Section("No floors", times=[Time("TTFT", "ms", None, 2.5)], grids=[Grid("Nothing", ("a", "b"), [])]),
        Section("A grid", grids=[Grid("Rows", ("name", "n", "share"), [("x", 28672, 0.9375), ("y", None, 1.0)])]),
    ],
    not_run=[NotRun("device spans", "an NVIDIA GPU")],
    host={"cpu": "a CPU", "cores": 2, "torch_threads": 1, "system": "Linux"},
    device="a CPU",
    versions={"python": "3.11.7", "torch": "2.13.0", "triton": None},
    commit="571cbb6a00000000-dirty",
    recorded_at="2026-01-31T23:59:58+00:00",
)
BAD_REPORT = replace(REPORT, sections=[*REPORT.sections, Section("Rebuilds", facts=[DIFFERENT_FACT])])
IMAGES = [image for section in BAD_REPORT.sections for image in section.images]
