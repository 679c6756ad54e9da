"""docs/vllm.md names every setting that is taken, and each one that is refused with the reason that the error gives."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest

from roseinfer import LLM, SamplingParams, sampling_params
from roseinfer.llm import loading
from roseinfer.paths import ROOT

PAGE = (ROOT / "docs" / "vllm.md").read_text(encoding="utf-8")
PARTS = dict(zip(("SamplingParams", "LLM"), re.split(r"^## .*\n", PAGE, flags=re.M)[1:], strict=True))
REFUSED = {"SamplingParams": sampling_params.NOT_TAKEN, "LLM": loading.NOT_TAKEN}


def rows(part: str) -> tuple[dict[str, str], dict[str, str]]:
    """Two dicts, of the tables of what is taken and of what is refused: {name: what the second column says}."""
    taken, refused = PARTS[part].split("| refused |")
    found = [dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", table, re.M)) for table in (taken, refused)]
    return found[0], found[1]


@pytest.mark.parametrize("part", PARTS)
def test_what_is_refused_stands_there_with_its_reason(part):
    assert rows(part)[1] == REFUSED[part]


def test_every_field_of_the_params_stands_there():
    assert {*rows("SamplingParams")[0]} == {field.name for field in fields(SamplingParams) if field.init}


def test_every_argument_of_llm_stands_there():
    assert {*rows("LLM")[0]} == {name for name in inspect.signature(LLM.__init__).parameters if name != "self"}


def test_no_name_is_both_taken_and_refused():
    assert not any(taken.keys() & refused.keys() for taken, refused in map(rows, PARTS))


def test_the_page_is_linked():
    assert "(docs/vllm.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
