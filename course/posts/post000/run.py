"""The runs behind post 000's report: the post's command on two stages, profiled, and raced without the profiler."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.bench.scheduler import ServerRun
from roseinfer.profiling import Trace

from ..posted_command import PostedCommand, arguments_here
from ..report.setting import Setting

BEFORE, AFTER = "s02", "s03"
QUICK_TOKENS = 8  # steps enough for a profile
REPEATS = 3


@dataclass(frozen=True)
class Measured(PostedCommand):
    """The runs. profiled: run and trace of each stage, by its short name. raced: interleaved, without the profiler."""

    profiled: dict[str, tuple[ServerRun, Trace]]
    raced: dict[str, list[ServerRun]]


def arguments(setting: Setting) -> list[str]:
    """Return the post's arguments for this machine: weights that need no download, and a device that is there."""
    changes = {
        "--checkpoint-path": None,
        "--tokenizer-name": None,
        "--hf-model-id": setting.model or "random:gpt2",
        "--device": str(setting.device),
    }
    return arguments_here("000", changes | ({"--max-new-tokens": str(QUICK_TOKENS)} if setting.quick else {}))


def measure(setting: Setting) -> Measured:
    command = PostedCommand.load(setting, arguments(setting))

    profiled = {}
    for stage in (BEFORE, AFTER):
        setting.say(f"the post's command, profiled: {stage}")
        run, trace = command.serve(setting.stages[stage], profile=True)
        assert trace is not None, "a profiled run has a trace"
        profiled[stage] = run, trace
    repeats = 1 if setting.quick else REPEATS
    setting.say(f"without the profiler, in turn: {repeats} runs each")
    raced = command.race({stage: setting.stages[stage] for stage in (BEFORE, AFTER)}, repeats)
    return Measured(**vars(command), profiled=profiled, raced=raced)
