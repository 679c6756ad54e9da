"""setup: the one call at the top of a notebook."""

from __future__ import annotations

import html
import platform
import random
from dataclasses import dataclass

from IPython.display import display as show

from roseinfer import display, doctor
from roseinfer.display.view import View, card

from .measure import freed_memory, long_cells
from .views.engine_page import engine_page


@dataclass(frozen=True, repr=False)
class Setup(View):
    """What a notebook starts from. facts: label -> what this machine has; shown, never compared."""

    seed: int
    facts: dict[str, str]

    def __repr__(self) -> str:
        return f"roseinfer course ready\nseed {self.seed} for random, numpy and torch"

    def to_html(self) -> str:
        facts = " · ".join(f"<b>{html.escape(k)}</b> {html.escape(v)}" for k, v in self.facts.items())
        return card(f"<p><b>roseinfer course ready</b>, seed {self.seed}</p><p class='rose-muted'>{facts}</p>", "good")


def setup(seed: int = 0, lesson: str | None = None) -> Setup:
    """Seed random, numpy and torch, turn gradients off, and say what this machine is.

    Args:
        seed: for all three.
        lesson: number of the lesson, such as "05", to show the part of the engine that it builds.

    An engine only runs forward: a gradient would keep every tensor of a step. Threads stay as they are.
    Raises ValueError for an unknown lesson.
    """
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.set_grad_enabled(False)
    display.install()
    long_cells.install()
    freed_memory.install()
    facts = {
        "device": doctor.probe_device().found,
        "torch": str(torch.__version__),
        "Triton": doctor.probe_triton().found,
        "transformers": doctor.installed_version("transformers") or "missing",
        "bf16": doctor.probe_bf16().found,
        "Python": platform.python_version(),
    }
    if lesson is not None:
        show(engine_page(lesson))
    return Setup(seed, facts)


def device() -> str:
    """Return "cuda" if torch sees a GPU, else "cpu"."""
    return "cuda" if doctor.cuda_available() else "cpu"
