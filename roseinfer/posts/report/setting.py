"""What a reproduction is given: the machine, the model, the stages, and how much time it may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import torch

from roseinfer.bench.provenance import describe_host
from roseinfer.stage import Stage

from ..data import post_facts
from .content import NotRun, PostReport, Section


@dataclass(frozen=True)
class Setting:
    """device: where to run. model: a spec, None for what the post's reproduction chooses for that device.

    quick: fewer tokens and repeats. stages: by short name ("s04"), handed in, for the library imports no stage.
    say: told in a line what is being done.
    """

    device: torch.device
    stages: Mapping[str, type[Stage]]
    model: str | None = None
    quick: bool = False
    say: Callable[[str], None] = lambda text: None

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def report(
        self, post: str, arguments: dict[str, Any], sections: Sequence[Section], not_run: Sequence[NotRun]
    ) -> PostReport:
        """The finished report, with where and when it ran."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        arguments = {"device": str(self.device), "quick": self.quick, **arguments}
        return PostReport(
            post, post_facts(post), arguments, sections, not_run, **describe_host(self.device), recorded_at=now
        )
