"""A report of a reproduction, made up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from course.posts.data import POSTS, Source, post_facts, posted_facts
from course.posts.report import Fact, Grid, NotRun, PostReport, Section, Time, Values, judge
from course.posts.report.template import templates, to_markdown, written

COMMAND = "roseinfer reproduce 000 --device cpu"
EQUAL_FACT = judge("aten::copy_", 192, 192, rule=0, why="never asked for")
EXPLAINED_FACT = judge("aten::slice", 1536, 384, rule=384, why="torch 2.13: no slice for `:`")
DIFFERENT_FACT = judge("a|b <rows>", "x & y", 768, rule=0, why="one table")
STATED, SEEN = Source("stated", "its table"), Source("repository", "engine.py, <append>")
COMPUTED, INFERRED = Source("computed", "28 layers x 8"), Source("inferred", "what fits")
ABOUT = {"title": "Performance", "model": "GPT-2 <small>", "hardware": "a GPU", "torch": None, "command": "run *it*"}
SOURCES = {"model": {"kind": "inferred", "from": "a file's name"}, "hardware": {"kind": "stated", "from": "part 1"}}


def section_of(post: str, title: str, values: Values) -> Section:
    """A section of a post's report, filled with values."""
    (template,) = (text for text in templates(post) if f"## {title}\n" in text)
    return written(template, {"about": post_facts(post), **values})


def facts_of(report: PostReport) -> dict[str, Fact]:
    """All facts of a report, by name."""
    return {fact.what: fact for section in report.sections for fact in section.facts}


def require_whole(report: PostReport, explained: set[str]) -> None:
    """Require that every fact is as in the post but for the explained ones, that every fact which the post's data names
    is judged, and that the report is JSON and Markdown and says what was not run."""
    facts = [fact for section in report.sections for fact in section.facts]
    assert {fact.what for fact in facts if fact.verdict != "equal"} == explained
    assert all((fact.verdict == "explained") == bool(fact.why) for fact in facts)
    if (POSTS / report.post / "judged.json").exists():
        judged = {fact.what: (fact.post, fact.source) for fact in facts}
        for what, posted in posted_facts(report.post).items():
            assert judged[what] == (posted.value, posted.source)
    data = json.loads(report.to_json())
    assert data["post"] == report.post and len(data["sections"]) == len(report.sections)
    assert report.not_run and all(part.what and part.needs for part in report.not_run)
    text = to_markdown(report, "the command")
    assert all(section.markdown in text for section in report.sections)


def grid(report: PostReport, title_start: str) -> Sequence[Sequence[object]]:
    """The rows of the only grid whose title begins so."""
    (rows,) = [g.rows for s in report.sections for g in s.grids if g.title.startswith(title_start)]
    return rows


def section(report: PostReport, title_start: str) -> Section:
    return next(section for section in report.sections if section.title.startswith(title_start))


def with_facts(title: str, *facts: Fact) -> Section:
    return written(f"## {title}\n\n{{{{ facts }}}}", {"facts": facts})


OPS = """## Ops of `append_token`

Counts of one step, a < b.

{{ query | fenced }}

{{ facts }}
"""
GRID = """## A grid

**Rows**

{{ table([("x", 28672, 0.9375), ("y", none, 1.0)], "name", "n", "share") }}
"""
REPORT = PostReport(
    post="000",
    about={**ABOUT, "sources": SOURCES},
    arguments={"device": "cpu", "quick": False},
    sections=[
        written(
            OPS,
            {
                "query": "SELECT '```' AS fence\nFROM slice",
                "facts": [EQUAL_FACT, EXPLAINED_FACT],
                "samples": {"runs": [0.1, 0.25]},
            },
        ),
        written(
            "## Times\n\n{{ times }}",
            {
                "times": [
                    Time("completion", "tok/s", 408.43, 61.1712, floor=244.6848),
                    Time("step", "ms", 12.463, 61.3345, floor=15.333625),
                    Time("TPOT", "ms", 15.32, None),
                ],
            },
        ),
        written(
            "## No floors\n\n{{ times }}\n\n**Nothing**\n\n{{ table(nothing) }}",
            {"times": [Time("TTFT", "ms", None, 2.5)], "nothing": Grid(("a", "b"), [])},
        ),
        written(GRID, {}),
    ],
    not_run=[NotRun("device spans", "an NVIDIA GPU")],
    host={"cpu": "a CPU", "cores": 2, "torch_threads": 1, "system": "Linux"},
    device="a CPU",
    versions={"python": "3.11.7", "torch": "2.13.0", "triton": None},
    commit="571cbb6a00000000-dirty",
    recorded_at="2026-01-31T23:59:58+00:00",
)
BAD_REPORT = replace(REPORT, sections=[*REPORT.sections, with_facts("Rebuilds", DIFFERENT_FACT)])
