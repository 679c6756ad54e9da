"""Race all stages on the same prompts, interleaved, with transformers' generate as a row.

A table, in a pipe or a file with a short line of JSON as the last line; --output keeps every sample. In fp32 wrong
tokens fail.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from roseinfer.bench.settings import Ladder
from roseinfer.cli.command import device_or_best
from roseinfer.cli.flags import add_flags, settings_of
from roseinfer.cli.memory_check import require_memory
from roseinfer.cli.output import add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import chosen_stages, untimed
from roseinfer.settings import DEVICE, MODEL

if TYPE_CHECKING:
    from roseinfer.bench.ladder_result import LadderResult

EXAMPLES = (
    "roseinfer ladder --model random:gpt2 --batch-size 16",
    "roseinfer ladder --stages s01,s03 --no-hf --output ladder.json",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="tiny", help=MODEL)
    add_flags(add, Ladder)
    add("--stages", help="such as s01,s03; all whose times say something here when not given")
    add("--device", help=DEVICE)
    add("--dtype", default="float32", choices=("float32", "float16", "bfloat16"), help="of weights and KV cache")
    add_output(add)
    hf = parser.add_mutually_exclusive_group()
    hf.add_argument("--no-hf", action="store_true", help="without transformers' generate")
    hf.add_argument("--hf-static", action="store_true", help="also transformers' generate with a static cache")


def run(args: argparse.Namespace) -> None:
    """Run the race. Raises ValueError for a bad argument, and what bench.ladder raises."""
    check_output(args)
    deliver(args, raced(args))


def raced(args: argparse.Namespace) -> LadderResult:
    import torch

    from roseinfer.bench.ladder import ladder
    from roseinfer.models import load_model

    stages = chosen_stages(args.stages)
    caches = ("dynamic", "static") if args.hf_static else ("dynamic",)
    setting = replace(settings_of(Ladder, args), with_hf=not args.no_hf, hf_caches=caches)
    device, num_tokens = device_or_best(args.device), setting.prompt_len + setting.max_new_tokens
    require_memory("--batch-size", setting.batch_size, num_tokens, model=args.model, dtype=args.dtype, device=device)
    model = load_model(args.model, device=device, dtype=getattr(torch, args.dtype))
    left_out = {} if args.stages else untimed(stages, model.device)
    stages = [stage for stage in stages if stage.name not in left_out]
    with shown_progress() as on_progress:
        result = ladder(stages, model, setting, on_progress=on_progress)
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}", file=sys.stderr)
    return replace(result, arguments={"model": args.model, **result.arguments}, not_run=left_out)
