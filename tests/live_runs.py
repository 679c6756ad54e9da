"""Live runs for tests: a known machine and clock, stages that are kept, a panel that runs on the tests' own model."""

from __future__ import annotations

import re
import threading
from html import unescape

import pytest
import torch

from course.teach.lesson04 import live_run
from course.teach.lesson04.dashboard import Dashboard
from course.teach.lesson04.live_run import LiveRun, RunSettings
from roseinfer.models import GPT2, load_model
from roseinfer.profiling import Machine
from stages import NaiveCat

SIZES = {"batch_size": 2, "prompt_len": 4, "max_new_tokens": 6}
MACHINE = Machine("A machine", "cpu", torch.float32, read_bytes_per_s=1e9, flops_per_s=1e11, samples={})
LONG = 60  # seconds to wait for a thread that takes a fraction of one: only a deadlock takes longer


class Ticking:
    """A clock that moves by `tick` seconds whenever it is read."""

    def __init__(self, tick: float) -> None:
        self.now = 0.0
        self.tick = tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Made(NaiveCat):
    """Keeps every stage that was made."""

    made: list[NaiveCat] = []

    def __init__(self, *args, **sizes) -> None:
        super().__init__(*args, **sizes)
        Made.made.append(self)


@pytest.fixture
def on_a_known_machine(monkeypatch, small: GPT2):
    """The spec "small" names the tests' own model; the floor is that of MACHINE; no thread outlives a test."""

    def load(spec, *args):
        return small if spec == "small" else load_model(spec, *args)

    monkeypatch.setattr(live_run, "load_model", load)
    monkeypatch.setattr(live_run, "measure_machine", lambda device, dtype: MACHINE)
    monkeypatch.setattr(Made, "made", [])
    yield
    if LiveRun._latest is not None:
        LiveRun._latest.stop()
        assert LiveRun._latest.wait(LONG)
    assert live_run.THREAD_NAME not in [thread.name for thread in threading.enumerate()]


def a_panel(*stages, **changes) -> Dashboard:
    settings = RunSettings(stages or (NaiveCat,), **{"model": "small", "dtype": "float32", **SIZES, **changes})
    panel = Dashboard(settings, clock=Ticking(1e-3))
    panel.stages.value = settings.stages
    return panel


def shown(html: str) -> str:
    """The readable text of HTML, a space between its pieces."""
    return " ".join(unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)).split())


def live(panel: Dashboard) -> str:
    return shown(panel._live.value)


def assert_all_free() -> None:
    assert Made.made
    for stage in Made.made:
        stage.tables.check()
        assert stage.num_free_blocks == stage.tables.num_blocks
