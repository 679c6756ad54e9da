"""Every post is reproduced once a session."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from small_posts import reproduce


@pytest.fixture(scope="session")
def reproduced(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """reproduced(post): the post's report, and what it was made of."""
    return cache(lambda post: reproduce(post, tmp_path_factory.mktemp("posts")))
