"""Simulate many requests on many replicas: the engine's own scheduler, with a cost model in place of a model.

What a step costs is measured here (--fit), read from an earlier fit (--cost), or a floor: what a GPU's data sheet says
it takes at least (--floor). Requests come all at once unless --rate or --trace says when. Every policy runs with every
router and number of --replicas on the same requests. Tables, in a pipe or a file with a short line of JSON as the last
line; --output keeps every sample. After Ctrl-C it tells what there is, as partial.

--validate holds a simulation to real runs of the engine on the same requests instead.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arrivals import Range
from roseinfer.cli.command import Failed, device_or_best
from roseinfer.cli.flags import add_flags, as_typed, given_fields, names, require_known, settings_of
from roseinfer.cli.output import add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.simulated_costs import about, fitted, floor_of, loaded, read_cost, repeats
from roseinfer.engine.config import EngineConfig
from roseinfer.settings import DEVICE, MODEL, flag

if TYPE_CHECKING:
    from roseinfer.arrivals import Arrival
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
# What some sources of costs leave unused, and what they would need for it.
MEASURED, FLOOR = ("repeats", "device"), ("model", "host_ms")


@dataclass(frozen=True, kw_only=True)
class Drawn:
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    costs = parser.add_argument_group("what a step costs").add_mutually_exclusive_group()
    costs.add_argument("--fit", metavar="MODEL", help=f"fitted to steps measured now; tiny when nothing else: {MODEL}")
    costs.add_argument("--cost", type=Path, metavar="FILE", help="fitted before: what --output of such a run wrote")
    costs.add_argument("--floor", metavar="GPU", help="a floor, for a GPU of roseinfer/data/gpus.json")
    costs.add_argument("--validate", metavar="MODEL", help="fit, and compare with real runs of the engine")
    add = parser.add_argument
    add("--model", help=f"of --floor; {FLOOR_MODEL} when not given")
    add("--dtype", choices=("float32", "float16", "bfloat16"), help="float16 with --floor, else float32 when not given")
    add("--device", help=f"of --fit and --validate: {DEVICE}")
    add("--repeats", type=int, help="rounds of --fit and --validate, after one for warm-up; 3 when not given")
    add("--host-ms", type=float, help="of --floor: what the host adds to each step, an assumption; 0 when not given")
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
    add("--replicas", default="1", metavar="COUNTS", help="engines behind a router, such as 8,16,32")
    add("--routers", default="round_robin", metavar="NAMES", help="of round_robin, prefix_aware")
    add("--policies", default="fcfs", metavar="NAMES", help="of fcfs, shortest, longest_output, packed")
    add_output(add)


def run(args: argparse.Namespace) -> None:
    """Simulate or validate. Raises ValueError for a bad argument, Failed where a validation is off."""
    check_output(args)
    refuse_unused(args)
    result: Any = validated(args) if args.validate else simulated(args)
    from roseinfer.display.measured import on_one_line
    from roseinfer.display.text_table import terminal_width

    deliver(
        args, result.text(terminal_width()), result.to_line, lambda: on_one_line(result.to_dict() | provenance(args))
    )
    if args.validate and not result.is_within:
        raise Failed(f"throughput is off by {result.worst_error:+.1%} at worst")
    if partial := getattr(result, "is_partial", False) and result.rows[-1]:
        raise KeyboardInterrupt(f"partial, {partial['ended']:,} of {partial['requests']:,} requests had ended")


def refuse_unused(args: argparse.Namespace) -> None:
    """Raise ValueError for an argument that would change nothing."""
    unused: dict[str, tuple[str, ...]] = {
        "--cost": (*MEASURED, *FLOOR, "dtype"),
        "--floor": MEASURED,
        "--validate": (*FLOOR, "rate", "burst", "trace", "prefix_len", "prefix_groups"),
        "--fit": FLOOR,
    }
    source = next((flag for flag in unused if getattr(args, flag[2:])), "--fit")
    for name in unused[source]:
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: changes nothing with {source}")
    if args.validate and args.replicas != "1":
        raise ValueError(f"--validate runs one replica, got --replicas {args.replicas}")
    if args.trace:
        for name in as_typed(Drawn()):
            if getattr(args, name) is not None:
                raise ValueError(f"--trace has all of its requests: leave out --{name.replace('_', '-')}")


def simulated(args: argparse.Namespace) -> Simulation:
    from roseinfer.simulator import ROUTERS, simulations

    policies, replicas = chosen_policies(args), replica_counts(args)
    routers = names("--routers", args.routers)
    require_known("--routers", routers, tuple(ROUTERS))
    drawn = settings_of(Drawn, args)
    arrivals = chosen_arrivals(args, drawn)
    setting, cost = setting_and_cost(args, arrivals)
    with shown_progress("simulating") as on_progress:
        return simulations(
            arrivals,
            setting,
            cost,
            policies=policies,
            replicas=replicas,
            routers=routers,
            on_progress=on_progress,
            arguments=arguments_of(args, drawn),
        )


def replica_counts(args: argparse.Namespace) -> list[int]:
    """Return the numbers of --replicas. Raises ValueError for anything else."""
    from roseinfer.simulator.cluster import check_replicas

    try:
        counts = [int(count) for count in names("--replicas", args.replicas)]
    except ValueError:
        raise ValueError(f"--replicas {args.replicas}: must be numbers such as 8,16,32") from None
    for count in counts:
        check_replicas(count)
    return counts


def chosen_policies(args: argparse.Namespace) -> list[str]:
    from roseinfer.engine.policies import POLICIES

    policies = names("--policies", args.policies)
    require_known("--policies", policies, tuple(POLICIES))
    return policies


def validated(args: argparse.Namespace) -> Validation:
    from roseinfer.simulator import validate

    (policy, *others) = chosen_policies(args)
    if others:
        raise ValueError(f"--validate runs one policy, got --policies {args.policies}")
    model = loaded(args.validate, args)
    setting = replace(setting_of(args, model.config.max_model_len), scheduling_policy=policy)
    drawn = replace(Drawn(num_requests=64), **given_fields(Drawn, args))
    with shown_progress("warming up") as on_progress:
        return validate(
            model,
            setting,
            about(args.validate, model),
            repeats=repeats(args),
            num_requests=drawn.num_requests,
            prompt_lens=drawn.prompt_lens,
            output_lens=drawn.output_lens,
            seed=drawn.seed,
            on_progress=on_progress,
        )


def setting_and_cost(args: argparse.Namespace, arrivals: list[Arrival]) -> tuple[EngineSetting, Cost]:
    """Refuse what can be refused, then fit or compute the cost."""
    from roseinfer.models import model_config

    cost = read_cost(args.cost) if args.cost else None
    spec = (args.model or FLOOR_MODEL) if args.floor else (args.fit or "tiny")
    setting = setting_of(args, None if cost else model_config(spec).max_model_len)
    setting.check_fits(arrivals)
    return setting, cost or (floor_of(args, spec) if args.floor else fitted(args, spec, setting))


def setting_of(args: argparse.Namespace, model_len: int | None) -> EngineSetting:
    from roseinfer.simulator import EngineSetting

    longest = {} if model_len is None else {"max_model_len": model_len}
    return EngineSetting(**longest | given_fields(EngineConfig, args), enable_prefix_caching=not args.no_prefix_caching)


def chosen_arrivals(args: argparse.Namespace, drawn: Drawn) -> list[Arrival]:
    from roseinfer.arrivals import at_once, bursts, read_trace

    if args.trace:
        return read_trace(args.trace)
    if drawn.rate is None and drawn.burst != 1:
        raise ValueError(f"--burst {drawn.burst}: needs --rate, requests a second")
    if drawn.prefix_groups != 1 and not drawn.prefix_len:
        raise ValueError(f"--prefix-groups {drawn.prefix_groups}: needs --prefix-len, tokens of a prefix")
    lengths = ("prompt_lens", "output_lens", "prefix_len", "prefix_groups", "seed")
    others: dict[str, Any] = {name: getattr(drawn, name) for name in lengths}
    if drawn.rate is None:
        return at_once(drawn.num_requests, **others)
    return bursts(drawn.num_requests, drawn.rate, drawn.burst, **others)


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from roseinfer.bench.provenance import describe_host

    return describe_host(torch.device(device_or_best(args.device)))


def arguments_of(args: argparse.Namespace, drawn: Drawn) -> dict[str, Any]:
    """Return the arguments of the requests, which the result cannot know."""
    typed = as_typed(drawn)
    return (dict.fromkeys(typed) if args.trace else typed) | {"trace": args.trace and str(args.trace)}
