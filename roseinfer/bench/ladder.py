"""The ladder: all stages on the same prompts; times, exact counts and the floor beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any

import torch

from roseinfer.models import Model
from roseinfer.profiling import Floor, Machine, decode_floor, measure_machine
from roseinfer.profiling.clock import Clock
from roseinfer.profiling.step_bound import products_seconds, step_bound
from roseinfer.stage import Stage

from .contenders import StageContender, hf_contender, require_fit
from .interleave import Contender, OnProgress, OnStep, Run, RunProgress, measure
from .ladder_result import LadderResult
from .provenance import describe_host
from .settings import HF_NAMES, Ladder
from .token_check import Referee
from .verdict import spread, verdict

USUAL = Ladder()


def ladder(
    stages: Sequence[type[Stage]],
    model: Model,
    setting: Ladder = USUAL,
    *,
    on_progress: OnProgress | None = None,
    clock: Clock = perf_counter,
) -> LadderResult:
    """Race `stages` in the order given: one warm-up run each, then `repeats` interleaved runs.

    All get the same `batch_size` random prompts of `prompt_len` tokens (from `seed`) and decode greedily, exactly
    `max_new_tokens` each. In fp32 every run's tokens must equal the reference's.

    Raises ValueError for a bad argument, TokensDiffer for wrong tokens, ContenderFailed when a contender raises.
    """
    check_stages(stages)
    require_fit(model.config, prompt_len=setting.prompt_len, max_new_tokens=setting.max_new_tokens)
    batch_size, max_new_tokens = setting.batch_size, setting.max_new_tokens
    prompts = random_prompts(model, batch_size, setting.prompt_len, setting.seed)
    entrants = [StageContender(stage, model, prompts, max_new_tokens, clock) for stage in stages]
    contenders: list[Contender] = [(entrant.name, entrant.run) for entrant in entrants]
    if setting.with_hf:
        contenders += [hf_contender(model, prompts, max_new_tokens, clock, cache) for cache in setting.hf_caches]
    referee = Referee(model, prompts)
    contenders = [_checked(contender, referee) for contender in contenders]

    machine = measure_machine(model.device, model.dtype)
    middle = (max_new_tokens - 2) // 2  # of the decode steps 0 to max_new_tokens - 2
    context_len = setting.prompt_len + middle + 1
    floor = decode_floor(model.config, [context_len] * batch_size, model.dtype, machine)
    counts: dict[str, dict[str, Any]] = {}
    if setting.with_hf:  # the model as loaded
        counts |= dict.fromkeys(HF_NAMES.values(), {"products_seconds": products_seconds(model, batch_size)})
    for entrant in entrants:
        if on_progress:
            on_progress(RunProgress("counting ops", entrant.name))
        counts[entrant.name] = entrant.counts(middle) | {"products_seconds": entrant.products_seconds()}

    samples = measure(contenders, repeats=setting.repeats, warmup=1, on_progress=on_progress)
    rows = _rows([name for name, _ in contenders], samples, counts, floor, machine, referee.verdicts)
    return LadderResult(
        arguments={"stages": [stage.name for stage in stages]} | setting.record(),
        model={**asdict(model.config), "dtype": str(model.dtype).removeprefix("torch.")},
        **describe_host(model.device),
        machine={
            "read_bytes_per_s": machine.read_rate(floor.weight_bytes + floor.kv_bytes),
            "flops_per_s": machine.flops_per_s,
            "samples": machine.samples,
        },
        floor={"context_len": context_len, **asdict(floor)},
        rows=rows,
        samples=samples,
    )


def check_stages(stages: Sequence[type[Stage]]) -> None:
    """Check that `stages` is a list of complete Stage classes, each with a name of its own; else raise ValueError."""
    if not isinstance(stages, (list, tuple)) or not stages:
        raise ValueError(f"stages must be a list of Stage classes, got {stages!r}")
    for stage in stages:
        if not (isinstance(stage, type) and issubclass(stage, Stage)):
            raise ValueError(f"stages must hold Stage classes (not objects), got {stage!r}")
        if missing := sorted(stage.__abstractmethods__):
            raise ValueError(f"stages: {stage.name} lacks {', '.join(missing)}")
    names = [stage.name for stage in stages]
    if len(set(names)) != len(names) or set(names) & set(HF_NAMES.values()):
        raise ValueError(f"stages must have names of their own (none of {list(HF_NAMES.values())}), got {names}")


def random_prompts(model: Model, batch_size: int, prompt_len: int, seed: int = 0) -> list[list[int]]:
    """Make the random prompts that every contender gets."""
    return mixed_prompts(model, [prompt_len] * batch_size, seed)


def mixed_prompts(model: Model, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Make a prompt of random ids for each length."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(model.config.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def _checked(contender: Contender, referee: Referee) -> Contender:
    name, run = contender

    def checked(on_step: OnStep) -> Run:
        result = run(on_step)
        referee.check(name, result.outputs)
        return result

    return name, checked


def _rows(
    names: list[str],
    samples: list[dict[str, Any]],
    counts: dict[str, dict[str, Any]],
    floor: Floor,
    machine: Machine,
    verdicts: dict[str, str],
) -> list[dict[str, Any]]:
    """Make one row per contender. Deltas are ratios of medians: 1.10 is 10% faster.

    HF is no step of the ladder, so its row has no delta against a previous one.
    """
    rows: list[dict[str, Any]] = []
    first: list[float] = []
    for name in names:
        own = [sample for sample in samples if sample["name"] == name]
        speeds = [sample["tokens_per_second"] for sample in own]
        speed, first = median(speeds), first or speeds
        step_seconds = own[0]["decode_tokens"] / len(own[0]["step_seconds"]) / speed
        counted = counts[name]
        own_bytes = 2 * counted.get("bytes_copied", 0) + counted.get("bytes_filled", 0)  # a copy reads and writes
        own_flops = max(counted.get("flops", 0) - floor.flops, 0)
        products = counted["products_seconds"]
        is_step = name not in HF_NAMES.values()
        rows.append(
            {
                "stage": name,
                **spread("tokens_per_second", speeds),
                "vs_previous": speed / rows[-1]["tokens_per_second"] if rows and is_step else None,
                "vs_first": speed / rows[0]["tokens_per_second"] if rows else None,
                "verdict": verdict(first, speeds) if rows else None,
                "total_tokens_per_second": median(s["tokens"] / s["seconds"] for s in own),
                "step_ms": 1e3 * step_seconds,
                "floor_share": floor.seconds / step_seconds,
                "bound": step_bound(floor, machine, step_seconds, products, own_bytes, own_flops),
                **counted,
                "tokens": verdicts[name],
            }
        )
    return rows
