"""The inputs of a reproduction: the machine, the model, the stages, and how much time it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import torch

from roseinfer.bench.provenance import describe_host
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.models import Model, load_model
from roseinfer.planning.sizes import PlannedEngine
from roseinfer.stage import Stage

from ..data import post_facts
from .content import PostReport
from .recorded import recorded_grids
from .template import Values, left_out, recorded_section, templates, written


@dataclass(frozen=True)
class Setting:
    """device: where to run. model: a spec; None for what the post's reproduction chooses for that device.

    quick: use fewer tokens and repeats. stages: by short name ("s04"); they are handed in, as the library imports no
    stage. say: called with a line about what is being done.
    """

    device: torch.device
    stages: Mapping[str, type[Stage]]
    model: str | None = None
    quick: bool = False
    say: Callable[[str], None] = lambda text: None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> str:
        """Half precision on a GPU, as the posts had it; fp32 on a CPU."""
        return "float16" if self.on_gpu else "float32"

    def engine(
        self, model: str, num_seqs: int, tokens: int, dtype: str | None = None, max_model_len: int | None = None
    ) -> PlannedEngine:
        """Plan an engine on this device, with room for num_seqs sequences that have so many tokens cached."""
        blocks = -(-tokens // BLOCK_SIZE)
        return PlannedEngine(
            model=model,
            num_blocks=num_seqs * blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=num_seqs,
            max_model_len=max_model_len,
            dtype=dtype or self.dtype,
            device=str(self.device),
        )

    def load(self, config: PlannedEngine) -> Model:
        """Load the engine's model. Raises ValueError for a model that is not found or does not fit."""
        self.say(f"loading {config.model} in {config.float_dtype}")
        return load_model(config.model, device=config.device, dtype=getattr(torch, config.float_dtype))

    def report(
        self, post: str, arguments: dict[str, Any], measured: Sequence[Values], not_run: Values | None = None
    ) -> PostReport:
        """Make the finished report, with where and when it ran.

        Args:
            post: its number.
            arguments: what this run chose.
            measured: the values of each section's template; all have the post's facts as `about`, too.
            not_run: the values of the template of what was not run, which also has this setting.
        """
        about = post_facts(post)
        *texts, last = templates(post)
        sections = [written(text, {"about": about, **values}) for text, values in zip(texts, measured, strict=True)]
        if recorded := recorded_grids(post):
            sections.append(recorded_section(recorded))
        parts = left_out(last, {"about": about, "setting": self, **(not_run or {})})
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        arguments = {"device": str(self.device), "quick": self.quick, **arguments}
        return PostReport(post, about, arguments, sections, parts, **describe_host(self.device), recorded_at=now)
