"""The runs behind post 000's report: the post's command on two stages, profiled, and raced without the profiler."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch

from roseinfer.bench.interleave import interleaved
from roseinfer.bench.scheduler import ServerRun, Workload, serve
from roseinfer.benchmark_scheduler import workload
from roseinfer.models import Model, load_model
from roseinfer.profiling import Trace

from ..posted_command import arguments_here, parsed
from ..report.setting import Plan

BEFORE, AFTER = "s02", "s03"
QUICK_TOKENS = 8  # steps enough for a profile
REPEATS = 3


@dataclass(frozen=True)
class Measured:
    """argv: the post's command with the changes of this machine, without a stage. profiled: run and trace of each
    stage, by its short name; raced: runs without the profiler, interleaved."""

    argv: list[str]
    args: argparse.Namespace
    model: Model
    work: Workload
    profiled: dict[str, tuple[ServerRun, Trace]]
    raced: dict[str, list[ServerRun]]


def arguments(plan: Plan) -> list[str]:
    """The post's command for this machine: weights that everybody has, and a device that is there."""
    changes = {
        "--checkpoint-path": None, "--tokenizer-name": None, "--hf-model-id": plan.model or "random:gpt2",
        "--device": str(plan.device),
    }  # fmt: skip
    return arguments_here("000", changes | ({"--max-new-tokens": str(QUICK_TOKENS)} if plan.quick else {}))


def dtype_of(plan: Plan) -> str:
    """Half precision on a GPU, as the post's autocast; fp32 on a CPU."""
    return "float16" if plan.on_gpu else "float32"


def measure(plan: Plan) -> Measured:
    argv = arguments(plan)
    args = parsed(argv)
    plan.say(f"loading {args.hf_model_id}")
    model = load_model(args.hf_model_id, device=plan.device, dtype=getattr(torch, dtype_of(plan)))
    work = workload(args, args.hf_model_id, model)

    def run(stage: str, profile: bool = False) -> tuple[ServerRun, Trace | None]:
        torch.manual_seed(0)  # both stages draw the same tokens
        return serve(args.mode, plan.stages[stage], model, work, args.max_batch_size, profile=profile)

    profiled = {}
    for stage in (BEFORE, AFTER):
        plan.say(f"the post's command, profiled: {stage}")
        profiled[stage] = run(stage, profile=True)
    repeats = 1 if plan.quick else REPEATS
    plan.say(f"without the profiler, in turn: {repeats} runs each")
    raced = interleaved({stage: lambda stage=stage: run(stage)[0] for stage in (BEFORE, AFTER)}, repeats)
    return Measured(argv, args, model, work, profiled, raced)
