"""Simulate many requests on many replicas: the engine's own scheduler, with a cost model in place of a model.

What a step costs is measured here (--fit), or a floor: what a GPU's data sheet says it takes at least (--floor).
Requests come all at once unless --rate or --trace says when. Every policy runs with every router and number of
--replicas on the same requests. Tables, in a pipe or a file with a short line of JSON as the last line; --output keeps
every sample.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import require_not_negative
from roseinfer.arrivals import Range
from roseinfer.cli.flags import add_flags, given_fields, refuse_changed, settings_of
from roseinfer.cli.output import add_output, check_output, deliver
from roseinfer.cli.progress import shown_progress
from roseinfer.engine.config import EngineConfig
from roseinfer.engine.policies import POLICIES
from roseinfer.hardware import best_device
from roseinfer.settings import DEVICE, MODEL, Settings, flag, names_of

if TYPE_CHECKING:
    from roseinfer.arrivals import Arrival
    from roseinfer.simulator import Cost, EngineSetting, Simulation

EXAMPLES = (
    "roseinfer simulate --requests 1000 --rate 20 --policies fcfs,shortest,longest_output,packed",
    "roseinfer simulate --fit random:gpt2 --replicas 8,16,32 --rate 100 --output simulated.json",
    "roseinfer simulate --floor 'RTX 4090' --model random:qwen2.5-7b --host-ms 0.3 --trace arrivals.jsonl",
    "roseinfer simulate --floor 'RTX 4090' --requests 1500 --rate 150 --max-num-seqs 128 --output-lens 1-2000 "
    "--policies fcfs,longest_output",
    "roseinfer simulate --floor 'H100 SXM' --requests 20000 --rate 10000 --replicas 64 --prefix-groups 512 "
    "--prefix-len 512 --routers round_robin,prefix_aware",
)


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
    floor: str | None = flag(None, "a floor, for a GPU of roseinfer/data/gpus.json", metavar="GPU")


@dataclass(frozen=True, kw_only=True)
class Runs(Settings):
    """What a source is told, and what is compared."""

    model: str = flag("random:qwen2.5-7b", "of --floor")
    dtype: str | None = flag(
        None, "float16 with --floor, else float32 when not given", choices=("float32", "float16", "bfloat16")
    )
    device: str = flag(None, f"of --fit: {DEVICE}", instead=best_device)
    repeats: int = flag(3, "rounds of --fit, after one for warm-up")
    host_ms: float = flag(0.0, "of --floor: what the host adds to each step, an assumption", check=require_not_negative)
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

    num_requests: int = flag(1000, "how many", name="--requests")
    rate: float | None = flag(None, "requests a second, a Poisson process; all at once when not given")
    burst: int = flag(1, "of --rate: so many come together")
    prompt_lens: Range = flag((16, 256), "tokens of a prompt, each number as likely", metavar="RANGE")
    output_lens: Range = flag((16, 128), "tokens of an output", metavar="RANGE")
    prefix_len: int = flag(0, "tokens before each prompt that it has in common with others")
    prefix_groups: int = flag(1, "different prefixes, each as likely")
    seed: int = flag(0, "of all that")


@dataclass(frozen=True, kw_only=True)
class Simulate(Source, Runs, Drawn):
    """All flags but those of the engine. trace: a file in place of Drawn."""

    trace: Path | None = None


DRAWN = [own.name for own in fields(Drawn)]
# Flags that change nothing, by the source of costs.
UNUSED = {"floor": ("repeats", "device"), "fit": ("model", "host_ms")}


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
    parser.set_defaults(num_blocks=1024)
    add_output(parser.add_argument)


def run(args: argparse.Namespace) -> None:
    """Simulate. Raises ValueError for a bad argument."""
    check_output(args)
    s = settings_of(Simulate, args)
    refuse_unused(s)
    result = simulated(s, args)
    from roseinfer.display.measured import on_one_line

    deliver(args, result, whole=lambda: on_one_line(result.to_dict() | provenance(s)))


def refuse_unused(s: Simulate) -> None:
    """Raise ValueError for an argument that would change nothing."""
    source = "floor" if s.floor else "fit"
    refuse_changed(s, dict.fromkeys(UNUSED[source], f"changes nothing with --{source}"))
    if s.trace:
        refuse_changed(s, dict.fromkeys(DRAWN, "leave it out, --trace has all of its requests"))
    if s.rate is None and s.burst != 1:
        raise ValueError(f"--burst {s.burst}: needs --rate, requests a second")
    if s.prefix_groups != 1 and not s.prefix_len:
        raise ValueError(f"--prefix-groups {s.prefix_groups}: needs --prefix-len, tokens of a prefix")


def simulated(s: Simulate, args: argparse.Namespace) -> Simulation:
    from roseinfer.simulator import simulations

    arrivals = arrivals_of(s)
    setting, cost = setting_and_cost(s, args, arrivals)
    with shown_progress("simulating") as on_progress:
        return simulations(
            arrivals,
            setting,
            cost,
            policies=s.policies,
            replicas=s.replicas,
            routers=s.routers,
            on_progress=on_progress,
            arguments=s.record() | (dict.fromkeys(DRAWN) if s.trace else {}),
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


def setting_and_cost(s: Simulate, args: argparse.Namespace, arrivals: list[Arrival]) -> tuple[EngineSetting, Cost]:
    """Refuse what can be refused, then fit or compute the cost."""
    from roseinfer.models import model_config
    from roseinfer.simulator import EngineSetting, floor_cost

    spec = s.model if s.floor else (s.fit or "tiny")
    given = {"max_model_len": model_config(spec).max_model_len} | given_fields(EngineConfig, args)
    setting = EngineSetting(**given)
    setting.check_fits(arrivals)
    if s.floor:
        return setting, floor_cost(s.floor, spec, s.dtype or "float16", s.host_ms / 1e3)
    return setting, fitted(s, spec, setting)


def fitted(s: Simulate, spec: str, setting: EngineSetting) -> Cost:
    import torch

    from roseinfer.hardware import device_name
    from roseinfer.models import load_model
    from roseinfer.simulator import fit, step_samples

    precision = s.dtype or "float32"
    model = load_model(spec, device=s.device, dtype=getattr(torch, precision))
    with shown_progress("warming up") as on_progress:
        samples = step_samples(
            model,
            max_num_seqs=setting.max_num_seqs,
            block_size=setting.block_size,
            repeats=s.repeats,
            seed=s.seed,
            on_progress=on_progress,
        )
    where = device_name(model.device)
    return fit(f"Step times: fitted to steps of the engine with {spec} in {precision}, measured on {where}.", samples)


def provenance(s: Simulate) -> dict[str, Any]:
    import torch

    from roseinfer.bench.provenance import describe_host

    return describe_host(torch.device(s.device))
