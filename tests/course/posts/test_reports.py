"""Every post's report: each fact that its data names is judged, and is as in the post or as a named rule has it."""

from __future__ import annotations

import json

import pytest

from course.posts.data import POSTS, posted_facts
from course.posts.report.template import to_markdown

pytestmark = pytest.mark.slow

EXPLAINED = {
    "000": {
        "Completion tokens",
        "Total tokens",
        "aten::as_strided",
        "aten::fill_",
        "aten::slice",
    },
    "001": {
        f"{what}, batch {size}"
        for what in (
            "copy_ in write_decode_kv",
            "index_put_ in write_decode_kv",
            "calls that index the cache in gather_batch_kv",
        )
        for size in (1, 4, 8)
    },
    "002": {
        "the same in the post's pool",
        "slots for the tokens of the warm-up's prompts",
        "rows that a prefill of 8 prompts of 8 tokens computes",
        "what output_logprob_shm holds",
        "blocks that are never freed, if a request is only marked",
        "requests of a prefill batch of 8 that find their token in their slot",
    },
    "003": {"waiting_time", "device steps from a token to the next, one step behind"},
    "004": {"Measured runs", "completion tokens", "rows built in the run that was timed, after"},
}


@pytest.mark.parametrize("post", EXPLAINED)
def test_every_fact_is_equal_or_explained(reproduced, post: str):
    facts = [fact for section in reproduced(post).report.sections for fact in section.facts]
    assert {fact.what for fact in facts if fact.verdict != "equal"} == EXPLAINED[post]
    assert all((fact.verdict == "explained") == bool(fact.why) for fact in facts)


@pytest.mark.parametrize("post", [post for post in EXPLAINED if (POSTS / post / "judged.json").exists()])
def test_every_fact_that_the_posts_data_names_is_judged(reproduced, post: str):
    facts = {fact.what: fact for section in reproduced(post).report.sections for fact in section.facts}
    for what, posted in posted_facts(post).items():
        assert (facts[what].post, facts[what].source) == (posted.value, posted.source)


@pytest.mark.parametrize("post", EXPLAINED)
def test_a_report_is_json_and_markdown_and_says_what_was_not_run(reproduced, post: str):
    report = reproduced(post).report
    data = json.loads(report.to_json())
    assert data["post"] == post and len(data["sections"]) == len(report.sections)
    assert report.not_run and all(part.what and part.needs for part in report.not_run)
    text = to_markdown(report, "the command")
    assert all(section.markdown in text for section in report.sections)
