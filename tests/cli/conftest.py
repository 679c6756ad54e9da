"""Fixtures of the commands' tests."""

from absent import without_module  # noqa: F401
