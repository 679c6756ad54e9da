"""What every part of a report is given, and where it says what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.kernels.paged_triton import paged_attention_triton
from roseinfer.stage import Stage

from .plan import Plan

LONGEST_REASON = 400


class Course(NamedTuple):
    """What is measured: handed in, for the library imports no stage. reference and kernel: attention of one step over
    block tables, with the same arguments. flat_kernel: attention over flat batches."""

    stages: Sequence[type[Stage]]
    reference: Callable[..., Tensor]
    kernel: Callable[..., Tensor]
    flat_kernel: Callable[..., Tensor] = paged_attention_triton


@dataclass
class Context:
    """traces: the folder for trace files. failures make the exit status 1; notes do not."""

    course: Course
    plan: Plan
    device: torch.device
    traces: Path
    commit: str | None
    say: Callable[[str], None]
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    started: float = field(default_factory=perf_counter)

    def seconds_left(self) -> float:
        return self.plan.seconds - (perf_counter() - self.started)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"failed: {text}")

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.say(text)


class PartFailed(RuntimeError):
    """A part of the report ended early; the message says why, in a line."""


def one_line(error: BaseException | str) -> str:
    """An error's type and message; a compiler's pages are cut, and the cut is named."""
    text = " ".join((f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error).split())
    if len(text) <= LONGEST_REASON:
        return text
    # Compilers say what they were doing first and what was wrong last.
    half = LONGEST_REASON // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"
