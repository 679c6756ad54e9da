"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest
from oracles import prompts_of

from roseinfer.models import GPT2
from roseinfer.reference import reference_generate


@pytest.fixture(scope="module")
def prompts(small: GPT2) -> list[list[int]]:
    first, second, third, _ = prompts_of((5, 30, 13, 30), small.config.vocab_size)
    return [first, second, third, [*second[:20], 1, 2]]


@pytest.fixture(scope="module")
def wanted(small: GPT2, prompts) -> list[list[int]]:
    return reference_generate(small, prompts, 9)
