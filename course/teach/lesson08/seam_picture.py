"""draw_seam: the four methods that a stage fills in, with the shapes they were given in a real run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from torch import Tensor

from roseinfer.display.figure import MIDDLE_INK, PALETTE, Picture, figure_alt
from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..views.stage_calls import METHODS, calls_through


@dataclass(frozen=True)
class Call:
    """Calls of one of the four methods: how many, and what the last call got and returned, with shapes."""

    method: str
    times: int
    gets: str
    gives: str

    def __str__(self) -> str:
        return f"{self.method} × {self.times}: gets {self.gets}; returns {self.gives}".replace("\n", " ")


def draw_seam(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> Picture:
    """Draw the prefill of these prompts and one decode step of all of them: the calls of each of the four methods."""
    calls = watch_seam(stage_class, model, prompt_lens)
    by_method = {call.method: call for call in calls}
    fig, ax = plt.subplots(figsize=(11, 4.2), layout="constrained")
    ax.set(xlim=(0, 12), ylim=(0, 4.6))
    ax.axis("off")
    boxes = {"write_prompt": (2.9, 3.6), "build": (2.9, 1.1), "step": (6.2, 1.1), "append": (9.5, 1.1)}
    for i, (method, (x, y)) in enumerate(boxes.items()):
        call = by_method[method]
        _box(ax, x, y, f"{method}  × {call.times}\n\ngets {call.gets}\nreturns {call.gives}", PALETTE[i])
    _box(
        ax,
        7.85,
        3.6,
        "the cache\n\nin the layout that your stage chooses:\nblocks, a pool, one tensor, ...",
        MIDDLE_INK,
        width=4.2,
    )
    ax.text(0.1, 3.6, f"prefill\nof {len(prompt_lens)} prompts", va="center")
    ax.text(0.1, 1.1, f"decode\nof {len(prompt_lens)} sequences", va="center")
    for start, end in (((4.3, 3.6), (5.75, 3.6)), ((4.3, 1.1), (4.8, 1.1)), ((7.6, 1.1), (8.1, 1.1))):
        _arrow(ax, start, end)
    _arrow(ax, (6.4, 2.75), (3.3, 1.95), "read")
    _arrow(ax, (9.5, 1.95), (8.9, 2.75), "write")
    title = f"Prefill of {len(prompt_lens)} prompts, then a decode step: what the methods of a stage get and return"
    return figure_alt(fig, "\n".join([title, *map(str, calls)]))


def watch_seam(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> list[Call]:
    """Run the prefills and one decode step; list the calls of each method, in the order of the first calls."""
    stage = stage_class(model, num_blocks=8 * len(prompt_lens))
    calls: dict[str, list[tuple[tuple[Any, ...], Any]]] = {method: [] for method in METHODS}

    def keep(method: str, work: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        result = work()
        calls[method].append((arguments, result))
        return result

    with calls_through(stage, keep):
        stage.decode(begin(stage, [[3 + i] * n for i, n in enumerate(prompt_lens)], SamplingParams()))
    (_, _, k_prompt, _), _ = calls["write_prompt"][-1]
    (_, q, k, _), out = calls["step"][-1]
    seqs = f"{len(prompt_lens)} sequences"
    words = {
        "write_prompt": (f"seq, layer,\nk and v {shape(k_prompt)} = [N, H_kv, D]", "nothing"),
        "build": (seqs, "step, which the\nmodel calls once per layer"),
        "step": (f"layer,\nq {shape(q)} = [B, H, D],\nk and v {shape(k)} = [B, H_kv, D]", f"{shape(out)} = [B, H, D]"),
        "append": (f"{seqs}, and\nthe step, which kept k and v", "nothing"),
    }
    return [Call(method, len(calls[method]), *words[method]) for method in METHODS]


def shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))


def _box(ax: Axes, x: float, y: float, text: str, colour: str, width: float = 2.8) -> None:
    ax.add_patch(plt.Rectangle((x - width / 2, y - 0.85), width, 1.7, fill=False, edgecolor=colour, linewidth=1.6))
    ax.text(x, y, text, ha="center", va="center", fontsize=8.5)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], label: str = "") -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": MIDDLE_INK})
    ax.text((start[0] + end[0]) / 2 + 0.15, (start[1] + end[1]) / 2, label, fontsize=8.5)
