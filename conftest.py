"""`pytest --nbval notebooks` runs notebooks as tests/nbval_notebooks.py says."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Load what runs notebooks if this run has any: it takes a second, and every worker would wait for it."""
    if getattr(config.option, "nbval", False):
        config.pluginmanager.import_plugin("tests.nbval_notebooks")
