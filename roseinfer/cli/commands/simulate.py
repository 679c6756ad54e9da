"""Simulate many requests on many replicas: the engine's own scheduler, with a cost model in place of a model.

What a step costs is measured here (--fit), read from an earlier fit (--cost), or a floor: what a GPU's data sheet says
it takes at least (--floor). Requests come all at once unless --rate or --trace says when. Every policy runs with every
router and number of --replicas on the same requests. Tables, in a pipe or a file with a short line of JSON as the last
line; --output keeps every sample. After Ctrl-C it tells what there is, as partial.

--validate holds a simulation to real runs of the engine on the same requests instead.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import require_not_negative
from roseinfer.arrivals import Range
from roseinfer.cli.command import Failed
from roseinfer.cli.flags import add_flags, as_typed, given_fields, settings_of
from roseinfer.cli.output import add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.policies import POLICIES
from roseinfer.hardware import best_device
from roseinfer.settings import DEVICE, MODEL, Settings, flag, names_of

if TYPE_CHECKING:
    from roseinfer.arrivals import Arrival
    from roseinfer.models import Model
    from roseinfer.simulator import Cost, EngineSetting, Simulation, Validation

EXAMPLES = (
    "roseinfer simulate --requests 1000 --rate 20 --policies fcfs,shortest,longest_output,packed",
    "roseinfer simulate --fit random:gpt2 --output fit.json",
    "roseinfer simulate --cost fit.json --requests 100000 --rate 2000 --replicas 8,16,32,64",
    "roseinfer simulate --floor 'RTX 4090' --model random:qwen2.5-7b --host-ms 0.3 --trace arrivals.jsonl",
    "roseinfer simulate --floor 'RTX 4090' --requests 1500 --rate 150 --max-num-seqs 128 --output-lens 1-2000 "
    "--policies fcfs,longest_output",
    "roseinfer simulate --floor 'H100 SXM' --requests 20000 --rate 10000 --replicas 64 --prefix-groups 512 "
    "--prefix-len 512 --routers round_robin,prefix_aware",
    "roseinfer simulate --validate tiny",
)
FLOOR_MODEL = "random:qwen2.5-7b"
VALIDATED_REQUESTS = 64
# Flags that change nothing, by the source of costs.
MEASURED, FLOOR = ("repeats", "device"), ("model", "host_ms")
UNUSED = {
    "cost": (*MEASURED, *FLOOR, "dtype"),
    "floor": MEASURED,
    "validate": (*FLOOR, "rate", "burst", "trace", "prefix_len", "prefix_groups"),
    "fit": FLOOR,
}


def replica_counts(name: str, counts: Sequence[int]) -> None:
    """Raise ValueError unless a cluster may have each of these numbers of replicas."""
    from roseinfer.simulator.cluster import check_replicas

    for count in counts:
        check_replicas(count)


def known_routers(name: str, routers: Sequence[str]) -> None:
    """Raise ValueError for a router that there is not."""
    from roseinfer.simulator import ROUTERS

    names_of(ROUTERS)(name, routers)


@dataclass(frozen=True, kw_only=True)
class Source(Settings):
    """Where the cost of a step comes from: one of these."""

    fit: str | None = flag(None, f"fitted to steps measured now; tiny when nothing else: {MODEL}", metavar="MODEL")
    cost: Path | None = flag(None, "fitted before: what --output of such a run wrote", metavar="FILE")
    floor: str | None = flag(None, "a floor, for a GPU of roseinfer/data/gpus.json", metavar="GPU")
    validate: str | None = flag(None, "fit, and compare with real runs of the engine", metavar="MODEL")


@dataclass(frozen=True, kw_only=True)
class Runs(Settings):
    """What a source is told, and what is compared."""

    model: str = flag(FLOOR_MODEL, f"of --floor; {FLOOR_MODEL} when not given", optional=True)
    dtype: str | None = flag(
        None, "float16 with --floor, else float32 when not given", choices=("float32", "float16", "bfloat16")
    )
    device: str = flag(None, f"of --fit and --validate: {DEVICE}", instead=best_device)
    repeats: int = flag(3, "rounds of --fit and --validate, after one for warm-up; 3 when not given", optional=True)
    host_ms: float = flag(
        0.0,
        "of --floor: what the host adds to each step, an assumption; 0 when not given",
        check=require_not_negative,
        optional=True,
    )
    replicas: Sequence[int] = flag(
        (1,), "engines behind a router, such as 8,16,32", check=replica_counts, metavar="COUNTS"
    )
    routers: Sequence[str] = flag(
        ("round_robin",), "of round_robin, prefix_aware", check=known_routers, metavar="NAMES"
    )
    policies: Sequence[str] = flag(
        ("fcfs",), "of fcfs, shortest, longest_output, packed", check=names_of(POLICIES), metavar="NAMES"
    )


@dataclass(frozen=True, kw_only=True)
class Drawn(Settings):
    """Requests that are drawn at random. None of these flags goes with those of a trace."""

    num_requests: int = flag(
        1000, "how many; 1000, and 64 with --validate, when not given", name="--requests", optional=True
    )
    rate: float | None = flag(None, "requests a second, a Poisson process; all at once when not given")
    burst: int = flag(1, "of --rate: so many come together; 1 when not given", optional=True)
    prompt_lens: Range = flag(
        (16, 256), "tokens of a prompt, each number as likely; 16-256 when not given", optional=True, metavar="RANGE"
    )
    output_lens: Range = flag((16, 128), "tokens of an output; 16-128 when not given", optional=True, metavar="RANGE")
    prefix_len: int = flag(
        0, "tokens before each prompt that it has in common with others; none when not given", optional=True
    )
    prefix_groups: int = flag(1, "different prefixes, each as likely; 1 when not given", optional=True)
    seed: int = flag(0, "of all that; 0 when not given", optional=True)


@dataclass(frozen=True, kw_only=True)
class Simulate(Source, Runs, Drawn):
    """All flags but those of the engine. trace: a file in place of Drawn."""

    trace: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("what a step costs").add_mutually_exclusive_group()
    add_flags(costs.add_argument, Source)
    add_flags(parser.add_argument, Runs)
    requests = parser.add_argument_group("requests").add_argument
    add_flags(requests, Drawn)
    requests("--trace", type=Path, metavar="FILE", help="JSON lines instead: seconds, prompt_len, output_len, prefix")
    engine = parser.add_argument_group("engine")
    add_flags(
        engine.add_argument,
        EngineConfig,
        num_blocks="of each replica's KV pool",
        max_num_seqs="sequences that run at a time, per replica",
    )
    engine.add_argument("--no-prefix-caching", action="store_true", help="every prompt is computed whole")
    parser.set_defaults(num_blocks=1024)
    add_output(parser.add_argument)


def run(args: argparse.Namespace) -> None:
    """Simulate or validate. Raises ValueError for a bad argument, Failed where a validation is off."""
    check_output(args)
    s = settings_of(Simulate, args)
    refuse_unused(s, args)
    result: Any = validated(s, args) if s.validate else simulated(s, args)
    from roseinfer.display.measured import on_one_line
    from roseinfer.display.text_table import terminal_width

    deliver(args, result.text(terminal_width()), result.to_line, lambda: on_one_line(result.to_dict() | provenance(s)))
    if s.validate and not result.is_within:
        raise Failed(f"throughput is off by {result.worst_error:+.1%} at worst")
    if partial := getattr(result, "is_partial", False) and result.rows[-1]:
        raise KeyboardInterrupt(f"partial, {partial['ended']:,} of {partial['requests']:,} requests had ended")


def refuse_unused(s: Simulate, args: argparse.Namespace) -> None:
    """Raise ValueError for an argument that would change nothing."""
    source = next((name for name in UNUSED if getattr(s, name)), "fit")
    for name in UNUSED[source]:
        if (value := getattr(args, name)) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {value}: changes nothing with --{source}")
    for one, values in {"replica": s.replicas, "policy": s.policies}.items():
        if s.validate and (len(values) > 1 or (one == "replica" and values[0] != 1)):
            raise ValueError(f"--validate runs one {one}, got {','.join(map(str, values))}")
    for name in as_typed(Drawn()):
        if s.trace and getattr(args, name) is not None:
            raise ValueError(f"--trace has all of its requests: leave out --{name.replace('_', '-')}")
    if s.rate is None and s.burst != 1:
        raise ValueError(f"--burst {s.burst}: needs --rate, requests a second")
    if s.prefix_groups != 1 and not s.prefix_len:
        raise ValueError(f"--prefix-groups {s.prefix_groups}: needs --prefix-len, tokens of a prefix")


def simulated(s: Simulate, args: argparse.Namespace) -> Simulation:
    from roseinfer.simulator import simulations

    arrivals = arrivals_of(s)
    setting, cost = setting_and_cost(s, args, arrivals)
    typed = {name: value for name, value in as_typed(s).items() if name in as_typed(Drawn())}
    told = (dict.fromkeys(typed) if s.trace else typed) | {"trace": s.trace and str(s.trace)}
    with shown_progress("simulating") as on_progress:
        return simulations(
            arrivals,
            setting,
            cost,
            policies=s.policies,
            replicas=s.replicas,
            routers=s.routers,
            on_progress=on_progress,
            arguments=told,
        )


def arrivals_of(s: Simulate) -> list[Arrival]:
    from roseinfer.arrivals import at_once, bursts, read_trace

    if s.trace:
        return read_trace(s.trace)
    lengths = ("prompt_lens", "output_lens", "prefix_len", "prefix_groups", "seed")
    others: dict[str, Any] = {name: getattr(s, name) for name in lengths}
    if s.rate is None:
        return at_once(s.num_requests, **others)
    return bursts(s.num_requests, s.rate, s.burst, **others)


def validated(s: Simulate, args: argparse.Namespace) -> Validation:
    from roseinfer.simulator import validate

    assert s.validate, "it names the model"
    model = loaded(s, s.validate)
    setting = replace(setting_of(args, model.config.max_model_len), scheduling_policy=s.policies[0])
    with shown_progress("warming up") as on_progress:
        return validate(
            model,
            setting,
            about(s.validate, model),
            repeats=s.repeats,
            num_requests=s.num_requests if args.requests else VALIDATED_REQUESTS,
            prompt_lens=s.prompt_lens,
            output_lens=s.output_lens,
            seed=s.seed,
            on_progress=on_progress,
        )


def setting_and_cost(s: Simulate, args: argparse.Namespace, arrivals: list[Arrival]) -> tuple[EngineSetting, Cost]:
    """Refuse what can be refused, then fit or compute the cost."""
    from roseinfer.models import model_config
    from roseinfer.simulator import floor_cost

    cost = read_cost(s.cost) if s.cost else None
    spec = s.model if s.floor else (s.fit or "tiny")
    setting = setting_of(args, None if cost else model_config(spec).max_model_len)
    setting.check_fits(arrivals)
    if s.floor:
        cost = floor_cost(s.floor, spec, s.dtype or "float16", s.host_ms / 1e3)
    return setting, cost or fitted(s, spec, setting)


def setting_of(args: argparse.Namespace, model_len: int | None) -> EngineSetting:
    from roseinfer.simulator import EngineSetting

    longest = {} if model_len is None else {"max_model_len": model_len}
    return EngineSetting(**longest | given_fields(EngineConfig, args), enable_prefix_caching=not args.no_prefix_caching)


def read_cost(path: Path) -> Cost:
    """Read the cost of a step. Raises ValueError for a file that `--fit` and `--output` did not write."""
    from roseinfer.simulator import cost_from

    try:
        return cost_from(json.loads(path.read_text(encoding="utf-8"))["cost"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--cost {path}: must be what --output of a run with --fit wrote") from error


def fitted(s: Simulate, spec: str, setting: EngineSetting) -> Cost:
    from roseinfer.simulator import fit, step_samples

    model = loaded(s, spec)
    with shown_progress("warming up") as on_progress:
        samples = step_samples(
            model,
            max_num_seqs=setting.max_num_seqs,
            block_size=setting.block_size,
            repeats=s.repeats,
            seed=s.seed,
            on_progress=on_progress,
        )
    return fit(about(spec, model), samples)


def loaded(s: Simulate, spec: str) -> Model:
    import torch

    from roseinfer.models import load_model

    return load_model(spec, device=s.device, dtype=getattr(torch, s.dtype or "float32"))


def about(spec: str, model: Model) -> str:
    from roseinfer.hardware import device_name

    precision, device = str(model.dtype).removeprefix("torch."), device_name(model.device)
    return f"Step times: fitted to steps of the engine with {spec} in {precision}, measured on {device}."


def provenance(s: Simulate) -> dict[str, Any]:
    import torch

    from roseinfer.bench.provenance import describe_host

    return describe_host(torch.device(s.device))
