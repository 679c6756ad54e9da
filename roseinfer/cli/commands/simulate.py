"""Simulate many requests on many replicas: the engine's own scheduler, with a cost model in place of a model.

What a step costs is measured here (--fit), read from an earlier fit (--cost), or a floor: what a GPU's data sheet says
it takes at least (--floor). Requests come all at once unless --rate or --trace says when. Every policy runs with every
number of replicas on the same requests. Tables, then a short line of JSON as the last line; --output keeps every
sample. After Ctrl-C it tells what there is, as partial.

--validate holds a simulation to real runs of the engine on the same requests instead.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.cli.command import DEVICE, MODEL, Failed, device_or_best
from roseinfer.cli.flags import add_flags, given_fields, integers, lengths, names, require_known
from roseinfer.cli.output import add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.engine.config import EngineConfig

if TYPE_CHECKING:
    from roseinfer.arrivals import Arrival
    from roseinfer.models import Model
    from roseinfer.simulator import Cost, EngineSetting, Simulation, Validation

EXAMPLES = (
    "roseinfer simulate --requests 1000 --rate 20 --policies fcfs,shortest,longest_output,packed",
    "roseinfer simulate --fit random:gpt2 --output fit.json",
    "roseinfer simulate --cost fit.json --requests 100000 --rate 2000 --replicas 8,16,32,64 --router least_loaded",
    "roseinfer simulate --floor 'RTX 4090' --model random:qwen2.5-7b --host-ms 0.3 --trace arrivals.jsonl",
    "roseinfer simulate --floor 'RTX 4090' --requests 1500 --rate 150 --max-num-seqs 128 --output-lens 1-2000 "
    "--policies fcfs,longest_output",
    "roseinfer simulate --validate tiny",
)
FLOOR_MODEL = "random:qwen2.5-7b"
# What some sources of costs leave unused, and what they would need for it.
MEASURED, FLOOR = ("repeats", "device"), ("model", "host_ms")
# What draws requests, and is not given with those of a trace.
DRAWN = {
    "requests": 1000,
    "rate": None,
    "burst": 1,
    "prompt_lens": "16-256",
    "output_lens": "16-128",
    "prefix_len": 0,
    "seed": 0,
}


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
    _add_arrivals(parser.add_argument_group("requests"))
    engine = parser.add_argument_group("engine")
    add_flags(
        engine.add_argument,
        EngineConfig,
        num_blocks="of the KV pool of each replica",
        max_num_seqs="sequences that run at a time, on each replica",
    )
    engine.add_argument("--no-prefix-caching", action="store_true", help="every prompt is computed whole")
    parser.set_defaults(num_blocks=1024)
    add("--replicas", default="1", metavar="COUNTS", help="such as 8,16,32,64")
    add("--router", default="round_robin", help="round_robin, or least_loaded by tokens")
    add("--policies", default="fcfs", metavar="NAMES", help="of fcfs, shortest, longest_output, packed")
    add_output(add)


def _add_arrivals(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--requests", type=int, help="how many; 1000, and 64 with --validate, when not given")
    add("--rate", type=float, help="requests a second, a Poisson process; all at once when not given")
    add("--burst", type=int, help="of --rate: so many come together; 1 when not given")
    add("--trace", type=Path, metavar="FILE", help="JSON lines instead: seconds, prompt_len, output_len, prefix")
    add("--prompt-lens", metavar="RANGE", help="tokens of a prompt, each number as likely; 16-256 when not given")
    add("--output-lens", metavar="RANGE", help="tokens of an output; 16-128 when not given")
    add("--prefix-len", type=int, help="tokens before each prompt that all have in common; none when not given")
    add("--seed", type=int, help="of all that; 0 when not given")


def run(args: argparse.Namespace) -> None:
    """Raises ValueError for a bad argument."""
    check_output(args)
    refuse_unused(args)
    if not args.trace:
        set_defaults(args, DRAWN | ({"requests": 64} if args.validate else {}))
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
    """Raises ValueError for an argument that would change nothing."""
    unused: dict[str, tuple[str, ...]] = {
        "--cost": (*MEASURED, *FLOOR, "dtype"),
        "--floor": MEASURED,
        "--validate": (*FLOOR, "rate", "burst", "trace", "prefix_len"),
        "--fit": FLOOR,
    }
    source = next((flag for flag in unused if getattr(args, flag[2:])), "--fit")
    for name in unused[source]:
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: changes nothing with {source}")
    if args.validate and args.replicas != "1":
        raise ValueError(f"--validate runs one replica, got --replicas {args.replicas}")
    if args.trace:
        for name in DRAWN:
            if getattr(args, name) is not None:
                raise ValueError(f"--trace has all of its requests: leave out --{name.replace('_', '-')}")


def set_defaults(args: argparse.Namespace, defaults: dict[str, Any]) -> None:
    for name, value in defaults.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def simulated(args: argparse.Namespace) -> Simulation:
    from roseinfer.simulator import simulations
    from roseinfer.simulator.cluster import check_cluster

    policies, replicas = chosen_policies(args), integers("--replicas", args.replicas)
    for num_replicas in replicas:
        check_cluster(num_replicas, args.router)
    arrivals = chosen_arrivals(args)
    setting, cost = setting_and_cost(args, arrivals)
    with shown_progress("simulating") as on_progress:
        return simulations(
            arrivals,
            setting,
            cost,
            policies=policies,
            replicas=replicas,
            router=args.router,
            on_progress=on_progress,
            arguments=given(args),
        )


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
    sizes: dict[str, Any] = {
        "prompt_lens": lengths("--prompt-lens", args.prompt_lens),
        "output_lens": lengths("--output-lens", args.output_lens),
    }
    with shown_progress("warming up") as on_progress:
        return validate(
            model,
            setting,
            about(args.validate, model),
            repeats=repeats(args),
            num_requests=args.requests,
            seed=args.seed,
            on_progress=on_progress,
            **sizes,
        )


def setting_and_cost(args: argparse.Namespace, arrivals: list[Arrival]) -> tuple[EngineSetting, Cost]:
    """Refuse what can be refused, then fit, read or compute the cost."""
    from roseinfer.models import model_config
    from roseinfer.simulator import cost_from, fit, floor_cost, step_samples

    if args.cost:
        try:
            cost = cost_from(json.loads(args.cost.read_text(encoding="utf-8"))["cost"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"--cost {args.cost}: must be what --output of a run with --fit wrote") from error
        return checked(setting_of(args, None), arrivals), cost
    if args.floor:
        spec = args.model or FLOOR_MODEL
        setting = checked(setting_of(args, model_config(spec).max_model_len), arrivals)
        if args.host_ms is not None and not 0 <= args.host_ms < float("inf"):
            raise ValueError(f"--host-ms must be a number of at least 0, got {args.host_ms:g}")
        return setting, floor_cost(args.floor, spec, args.dtype or "float16", (args.host_ms or 0.0) / 1e3)
    spec = args.fit or "tiny"
    setting = checked(setting_of(args, model_config(spec).max_model_len), arrivals)
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
    return setting, fit(about(spec, model), samples)


def repeats(args: argparse.Namespace) -> int:
    return 3 if args.repeats is None else args.repeats


def checked(setting: EngineSetting, arrivals: list[Arrival]) -> EngineSetting:
    setting.check_fits(arrivals)
    return setting


def setting_of(args: argparse.Namespace, model_len: int | None) -> EngineSetting:
    from roseinfer.simulator import EngineSetting

    longest = {} if model_len is None else {"max_model_len": model_len}
    return EngineSetting(**longest | given_fields(EngineConfig, args), enable_prefix_caching=not args.no_prefix_caching)


def chosen_arrivals(args: argparse.Namespace) -> list[Arrival]:
    from roseinfer.arrivals import at_once, bursts, read_trace

    if args.trace:
        return read_trace(args.trace)
    if args.rate is None and args.burst != 1:
        raise ValueError(f"--burst {args.burst}: needs --rate, requests a second")
    sizes: dict[str, Any] = {
        "prompt_lens": lengths("--prompt-lens", args.prompt_lens),
        "output_lens": lengths("--output-lens", args.output_lens),
        "prefix_len": args.prefix_len,
        "seed": args.seed,
    }
    if args.rate is None:
        return at_once(args.requests, **sizes)
    return bursts(args.requests, args.rate, args.burst, **sizes)


def loaded(spec: str, args: argparse.Namespace) -> Model:
    import torch

    from roseinfer.models import load_model

    return load_model(spec, device=device_or_best(args.device), dtype=getattr(torch, args.dtype or "float32"))


def about(spec: str, model: Model) -> str:
    from roseinfer.hardware import device_name

    precision, device = str(model.dtype).removeprefix("torch."), device_name(model.device)
    return f"Step times: fitted to steps of the engine with {spec} in {precision}, measured on {device}."


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from roseinfer.bench.provenance import describe_host

    return describe_host(torch.device(device_or_best(args.device)))


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the requests, which the result cannot know."""
    return {name: getattr(args, name) for name in DRAWN} | {"trace": args.trace and str(args.trace)}
