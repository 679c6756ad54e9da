"""A post's own command line, with the changes that this machine needs."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.scheduler import ServerRun, Workload, serve
from roseinfer.bench.scheduler.arguments import add_arguments, workload
from roseinfer.models import Model
from roseinfer.profiling import Trace, decode_floor, measure_machine
from roseinfer.stage import Stage

from .data import post_facts
from .report.setting import Setting

MODULE = "roseinfer.benchmark_scheduler"


def arguments_here(post: str, changes: Mapping[str, str | None]) -> list[str]:
    """Return the arguments of the post's command with changes: a flag's value here; None leaves the flag out.

    A flag that the post does not give is added at the end.
    """
    words = shlex.split(post_facts(post)["command"])
    given = words[words.index("-m") + 2 :]
    kept: list[str] = []
    added = {flag: value for flag, value in changes.items() if value is not None}
    while given:
        flag, *given = given
        value = [given.pop(0)] if given and not given[0].startswith("--") else []
        if flag not in changes:
            kept += [flag, *value]
        elif flag in added:
            kept += [flag, added.pop(flag)]
    return kept + [word for pair in added.items() for word in pair]


def command_line(arguments: list[str]) -> str:
    """Write the command as one types it."""
    return f"python -m {MODULE} {shlex.join(arguments)}"


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse the arguments as our benchmark does."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@dataclass(frozen=True)
class PostedCommand:
    """A post's command with its model loaded. argv: its arguments with the changes of this machine, without a stage."""

    argv: list[str]
    args: argparse.Namespace
    model: Model
    work: Workload

    @classmethod
    def load(cls, setting: Setting, argv: list[str]) -> PostedCommand:
        args = parsed(argv)
        model = setting.load(setting.engine(args.hf_model_id, args.num_requests, args.max_new_tokens))
        return cls(argv, args, model, workload(args, args.hf_model_id, model))

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return what a report says that this run chose: the model, and arguments of the command by their names."""
        dtype = str(self.model.dtype).removeprefix("torch.")
        return {"model": self.args.hf_model_id, "dtype": dtype, **{name: getattr(self.args, name) for name in names}}

    def serve(self, stage: type[Stage], **options: Any) -> tuple[ServerRun, Trace | None]:
        """Run it once on a stage; options as bench.scheduler.serve takes them."""
        return serve(stage, self.model, self.work, self.args.max_batch_size, **options)

    def race(self, stages: Mapping[str, type[Stage]], repeats: int, warmup: int = 0) -> dict[str, list[ServerRun]]:
        """Run it on each of the stages in turn, by name."""
        runs = {name: partial(self.serve, stage) for name, stage in stages.items()}
        return {name: [run for run, _ in taken] for name, taken in interleaved(runs, repeats, warmup).items()}

    def lines(self, *stages: str) -> str:
        """Write the command to type for each of the stages, one a line."""
        return "\n".join(command_line([*self.argv, "--stage", stage]) for stage in stages)

    def floor_seconds(self, run: ServerRun) -> float:
        """Return the least time that this machine needs to read weights and cached tokens once for each decode step."""
        config, dtype = self.model.config, self.model.dtype
        machine = measure_machine(self.model.device, dtype)
        return sum(decode_floor(config, lens, dtype, machine).seconds for lens in run.decode_steps.values())
