"""The runs behind post 004's report: its command before and after the block-table cache, in turn, and rows counted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from roseinfer.bench.scheduler import ServerRun
from roseinfer.bench.table_steps import table_steps
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.models import Model
from roseinfer.models.load import shape_of
from roseinfer.models.shapes import random_model
from roseinfer.sequence import Sequence
from roseinfer.stage import Stage

from ..data import post_facts
from ..posted_command import PostedCommand, arguments_here
from ..report.setting import Setting

BEFORE, AFTER = "before", "after"
POST_MODEL = "random:gpt2"  # the post's shape; where blocks change does not depend on the weights' values
CPU_TOKENS = BLOCK_SIZE + 8  # enough for every sequence to cross a block's edge once


@dataclass(frozen=True)
class Measured(PostedCommand):
    """The stages and runs, under BEFORE and AFTER. rows: built by each decode step, in a counted run of AFTER.

    post_rows: of both, for the post's own sizes, without a model.
    """

    stages: dict[str, type[Stage]]
    runs: dict[str, list[ServerRun]]
    rows: list[int]
    post_rows: dict[str, list[int]]


def arguments(setting: Setting) -> list[str]:
    """Return the post's arguments for here: fewer tokens on a CPU; with --quick the bundled model and one run."""
    changes = {
        "--hf-model-id": setting.model or ("tiny" if setting.quick else POST_MODEL),
        "--device": str(setting.device),
    }
    if not setting.on_gpu:
        changes["--max-new-tokens"] = str(CPU_TOKENS)
    if setting.quick:
        changes["--repeat-runs"] = "1"
    return arguments_here("004", changes)


def pair(setting: Setting) -> dict[str, type[Stage]]:
    """Return stages 05 and 06; on a GPU both with stage 07's kernel, as the post's had one.

    On a CPU the times of the kernel's interpreter would say nothing.
    """
    before, after, kernel = (setting.stages[name] for name in ("s05", "s06", "s07"))
    if kernel.why_untimed(setting.device):
        return {BEFORE: before, AFTER: after}
    attention = {"attention": kernel.__dict__["attention"], "name": f"{before.name}, kernel of {kernel.name}"}
    return {BEFORE: type("BlockTableWithKernel", (before,), attention), AFTER: kernel}


def measure(setting: Setting) -> Measured:
    command = PostedCommand.load(setting, arguments(setting))
    args = command.args
    stages = pair(setting)
    rows: list[int] = []

    setting.say(f"{args.warmup_runs} warm-up and {args.repeat_runs} timed runs of both, in turn")
    runs = command.race(stages, args.repeat_runs, args.warmup_runs)
    setting.say("counting the rows that each step builds")

    command.serve(counting(stages[AFTER], rows))
    return Measured(**vars(command), stages=stages, runs=runs, rows=rows, post_rows=post_rows(setting))


def counting(stage: type[Stage], rows: list[int]) -> type[Stage]:
    """Make a stage that appends the rows that each of its decode steps builds to `rows`."""

    class Counting(stage):  # type: ignore[valid-type, misc]
        def next_tokens(self, seqs: list[Sequence]) -> list[int]:
            tokens = super().next_tokens(seqs)
            rows.append(self.rows_built - sum(rows))
            return tokens

    return Counting


def post_rows(setting: Setting) -> dict[str, list[int]]:
    """Count the rows that each decode step of the post's own run builds, before and after; tables need no model."""
    facts, flat = post_facts("004"), flat_model()
    lengths = [1] * facts["num_requests"]  # the prompt is one token
    steps = facts["max_new_tokens"] - 1  # the prefill makes the first token
    stages = {BEFORE: setting.stages["s05"], AFTER: setting.stages["s06"]}
    return {when: table_steps(stage, flat, lengths, steps, facts["block_size"]) for when, stage in stages.items()}


def flat_model() -> Model:
    """Make a model with the layers and positions of the post's, and small in all else, which tables do not see."""
    small: dict[str, Any] = {"vocab_size": 64, "hidden_size": 8, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8}
    return random_model(replace(shape_of(POST_MODEL), **small, intermediate_size=8))
