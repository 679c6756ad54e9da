"""draw_seam: the four methods that a stage fills in, with the shapes they were given in a real run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from roseinfer.display.table import Table
from roseinfer.generate import begin
from roseinfer.models import Model
from roseinfer.sequence import SamplingParams
from roseinfer.stage import Stage

from ..views.rows_table import table
from ..views.stage_calls import METHODS, calls_through


def draw_seam(stage_class: type[Stage], model: Model, prompt_lens: Sequence[int]) -> Table:
    """Show the prefill of these prompts and one decode step of all of them: the calls of each of the four methods."""
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
        "write_prompt": (f"seq, layer, k and v {shape(k_prompt)} = [N, H_kv, D]", "nothing", "written"),
        "build": (seqs, "step, which the model calls once per layer", ""),
        "step": (
            f"layer, q {shape(q)} = [B, H, D], k and v {shape(k)} = [B, H_kv, D]", f"{shape(out)} = [B, H, D]", "read",
        ),
        "append": (f"{seqs}, and the step, which kept k and v", "nothing", "written"),
    }  # fmt: skip
    rows = [
        {"method": method, "calls": len(calls[method])}
        | dict(zip(("gets", "returns", "the cache is"), words[method], strict=True))
        for method in METHODS
    ]
    title = f"Prefill of {len(prompt_lens)} prompts, then a decode step: what the methods of a stage get and return"
    return table(rows, title=title)


def shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
