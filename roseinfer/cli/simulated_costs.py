"""Costs of a step for `roseinfer simulate`: read from a file, a floor, or fitted to steps that are measured now."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from roseinfer.cli.command import device_or_best
from roseinfer.cli.progress import shown_progress

if TYPE_CHECKING:
    from roseinfer.models import Model
    from roseinfer.simulator import Cost, EngineSetting


def read_cost(path: Path) -> Cost:
    """Read the cost of a step. Raises ValueError for a file that `--fit` and `--output` did not write."""
    from roseinfer.simulator import cost_from

    try:
        return cost_from(json.loads(path.read_text(encoding="utf-8"))["cost"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--cost {path}: must be what --output of a run with --fit wrote") from error


def floor_of(args: argparse.Namespace, spec: str) -> Cost:
    from roseinfer.simulator import floor_cost

    if args.host_ms is not None and not 0 <= args.host_ms < float("inf"):
        raise ValueError(f"--host-ms must be a number of at least 0, got {args.host_ms:g}")
    return floor_cost(args.floor, spec, args.dtype or "float16", (args.host_ms or 0.0) / 1e3)


def fitted(args: argparse.Namespace, spec: str, setting: EngineSetting) -> Cost:
    from roseinfer.simulator import fit, step_samples

    model = loaded(spec, args)
    with shown_progress("warming up") as on_progress:
        samples = step_samples(
            model,
            max_num_seqs=setting.max_num_seqs,
            block_size=setting.block_size,
            repeats=repeats(args),
            seed=args.seed or 0,
            on_progress=on_progress,
        )
    return fit(about(spec, model), samples)


def repeats(args: argparse.Namespace) -> int:
    return 3 if args.repeats is None else args.repeats


def loaded(spec: str, args: argparse.Namespace) -> Model:
    import torch

    from roseinfer.models import load_model

    return load_model(spec, device=device_or_best(args.device), dtype=getattr(torch, args.dtype or "float32"))


def about(spec: str, model: Model) -> str:
    from roseinfer.hardware import device_name

    precision, device = str(model.dtype).removeprefix("torch."), device_name(model.device)
    return f"Step times: fitted to steps of the engine with {spec} in {precision}, measured on {device}."
