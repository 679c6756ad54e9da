"""Modules and distributions that are not there."""

from __future__ import annotations

import builtins
import importlib.metadata

import pytest


@pytest.fixture
def without_module(monkeypatch):
    def hide(name):
        real = builtins.__import__

        def guarded(wanted, *args, **kwargs):
            if wanted.split(".")[0] == name:
                raise ImportError(f"No module named {name!r}")
            return real(wanted, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", guarded)

    return hide


def distribution_missing(monkeypatch, *names):
    real = importlib.metadata.version

    def version(name):
        if name in names:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
