"""A module's post, reproduced once."""

from __future__ import annotations

import pytest
from small_posts import Reproduced, reproduce

from course.posts.report import PostReport


@pytest.fixture(scope="module")
def reproduced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """The report of the module's POST, and what it was made of."""
    return reproduce(request.module.POST, tmp_path_factory.mktemp("posts"))


@pytest.fixture(scope="module")
def report(reproduced: Reproduced) -> PostReport:
    return reproduced.report
