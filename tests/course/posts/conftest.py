"""A module's post, reproduced once, on a machine of which nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from small_posts import MACHINE, Reproduced, reproduce

from course.posts import post001, post003, posted_command
from course.posts.report import PostReport


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (posted_command, post001.measure, post003):
            patch.setattr(module, "measure_machine", lambda *where: MACHINE)
        yield


@pytest.fixture(scope="module")
def reproduced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reproduced:
    """The report of the module's POST, and what it was made of."""
    return reproduce(request.module.POST, tmp_path_factory.mktemp("posts"))


@pytest.fixture(scope="module")
def report(reproduced: Reproduced) -> PostReport:
    return reproduced.report
