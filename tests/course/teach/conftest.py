"""Fixtures of the lessons' tests."""

from live_runs import on_a_known_machine  # noqa: F401
