"""Serve a model over HTTP: OpenAI's API, a page with a playground, and the engine's metrics.

MODEL is loaded while the server answers /health. http://HOST:PORT/ is the page, /v1 the API (completions, chat,
models), /generate the form of post 002's server, /metrics for Prometheus. SIGTERM or Ctrl-C let requests end, and a
second one does not wait for them. docs/serving.md tells more, and has the keys of --config.

--replicas: as many engines, each a process that Ray Serve starts and watches, at one address (docs/scaling.md).
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import require_count, require_known
from roseinfer.cli.answering import ModelFlags
from roseinfer.cli.command import Failed, device_or_best, no_file
from roseinfer.cli.flags import add_flags, given_fields, settings_of
from roseinfer.cli.repository import with_stage
from roseinfer.engine.config import AUTO, EngineConfig, check_device, check_dtype
from roseinfer.engine.policies import POLICIES
from roseinfer.server.lines import to_stderr as say
from roseinfer.server.settings import ServerSettings
from roseinfer.settings import MODEL, flag

if TYPE_CHECKING:
    from roseinfer.llm.llm import LLM
    from roseinfer.server.config_file import ConfigFile
    from roseinfer.server.run import Serving

EXAMPLES = (
    "roseinfer serve tiny",
    "roseinfer serve ./my-model --host 0.0.0.0 --port 8835 --max-num-seqs 128 --max-queue 1500",
    "roseinfer serve tiny --config server.yaml",
    "roseinfer serve smollm2 --engine my_engine",
    "roseinfer serve tiny --replicas 2 --affinity-header x-prefix-id",
)
KEY_VARIABLE = "ROSEINFER_API_KEY"
MOST_REPLICAS = 64  # processes of this machine
OF_CONNECTIONS = ("max_header_kib", "header_seconds", "send_seconds", "max_connections", "access_log")
SIZES = ("block_size", "max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, kw_only=True)
class ServedModel(ModelFlags):
    """Further arguments of LLM that are flags, beside those of EngineConfig."""

    tokenizer: str | None = flag(None, "a folder or hub id; the model's own when not given")
    num_kvcache_blocks: int | None = flag(None, "blocks of the KV pool, --block-size tokens each")
    tensor_parallel_size: int | None = flag(
        None,
        "processes, or GPUs, that share each layer",
        short="--tensor-parallel",
        dest="tensor_parallel_size",
    )
    scheduling_policy: str | None = flag(None, "fcfs, shortest, longest_output or packed")


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """Flags of a server on Ray Serve."""

    replicas: int | None = flag(None, "engines at one address, on Ray Serve; needs the extra [scale]")
    affinity_header: str | None = flag(
        None, "requests with the same value of it go to the same replica; when not given, to the less busy one of two"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML; flags win over what it says")
    add_flags(parser.add_argument_group("server").add_argument, ServerSettings)
    add_flags(parser.add_argument_group("replicas").add_argument, Replicas)
    engine = parser.add_argument_group("engine")
    add_flags(engine.add_argument, ServedModel)
    for own in fields(EngineConfig):
        if own.name in SIZES:
            name = f"--{own.name.replace('_', '-')}"
            engine.add_argument(name, type=int, help=own.metadata["help"])


def run(args: argparse.Namespace) -> None:
    """Start the server. Raises ValueError for a bad argument, OSError for an address that cannot be listened at."""
    from roseinfer.server.run import Serving, serve

    config = config_of(args.config)
    server = {"api_key": os.environ.get(KEY_VARIABLE) or None} | config.server | given_fields(ServerSettings, args)
    settings = ServerSettings(**server).with_template_text()
    engine = config.engine | given_fields(ServedModel, args)
    engine |= {name: value for name in SIZES if (value := getattr(args, name)) is not None}
    for why in dict.fromkeys(config.unused):
        say(f"{args.config}: some keys change nothing here: {why}")
    check_engine(args.model, engine)
    engine = with_stage(engine)
    if "stage" in engine:
        from roseinfer.llm.stage_engine import check_stage

        check_stage(engine["stage"], engine)
    serving = Serving(
        make_llm=loader(args.model, engine, config.vocab_size),
        model_name=settings.served_model_name or args.model,
        end_tokens=config.end_tokens,
        most_new_tokens=config.most_new_tokens,
    )
    replicas = settings_of(Replicas, args)
    if replicas.replicas is not None:
        check_replicas(replicas.replicas, server, engine)
        serve_on_ray(serving, settings, replicas.replicas, engine, replicas.affinity_header)
        return
    if replicas.affinity_header is not None:
        raise ValueError(f"--affinity-header {replicas.affinity_header}: needs --replicas")
    if not serve(serving, settings, say):  # Python would wait for that thread, or crash it
        os._exit(0)


def check_replicas(num_replicas: int, server: dict[str, Any], engine: dict[str, Any]) -> None:
    """Raise ValueError for settings that do not go together with replicas on Ray Serve."""
    require_count("--replicas", num_replicas, at_least=1, at_most=MOST_REPLICAS)
    for name in OF_CONNECTIONS:
        if name in server:
            raise ValueError(f"{name}={server[name]}: changes nothing with --replicas, whose connections are Ray's")
    if "stage" in engine:
        raise ValueError("--engine: does not combine with --replicas, whose processes start the engine alone")
    if (shards := engine.get("tensor_parallel_size", 1)) != 1:
        raise ValueError(
            f"--tensor-parallel {shards} does not combine with --replicas {num_replicas}: Ray does not know of the "
            "processes that a replica would start. Leave one of them out"
        )


def check_engine(model: str, engine: dict[str, Any]) -> None:
    """Check what can be checked of a model and its settings before a server is there. Raises ValueError."""
    from roseinfer.models import model_config
    from roseinfer.models.weights import check_quantization

    sizes = {name: engine[name] for name in (*SIZES, "max_model_len") if name in engine}
    EngineConfig(num_blocks=engine.get("num_kvcache_blocks", 1), **sizes).longest(model_config(model))
    if "scheduling_policy" in engine:
        require_known("scheduling_policy", str(engine["scheduling_policy"]), POLICIES)  # a file may have any value
    if (dtype := engine.get("dtype")) is not None:
        check_dtype(dtype, AUTO)
    device = device_or_best(engine.get("device"))
    check_device(device)
    check_quantization(engine.get("quantization"), device)


def serve_on_ray(
    serving: Serving, settings: ServerSettings, num_replicas: int, engine: dict[str, Any], header: str | None
) -> None:
    """Serve on Ray. Raises ValueError for a bad header or without the extra [scale], Failed where no replicas start."""
    if header is not None and not re.fullmatch(r"[A-Za-z0-9-]+", header):
        raise ValueError(f"--affinity-header must be of letters, digits and -, got {header!r}")
    if not find_spec("ray"):
        raise ValueError(f"--replicas {num_replicas}: needs Ray Serve: run `pip install '.[scale]'`")
    from roseinfer.server.local_replicas import ReplicasFailed, serve_replicas

    max_num_seqs = engine.get("max_num_seqs", EngineConfig(num_blocks=1).max_num_seqs)
    try:
        serve_replicas(serving, settings, num_replicas, max_num_seqs, header, say)
    except ReplicasFailed as error:
        raise Failed(str(error)) from error


def config_of(path: Path | None) -> ConfigFile:
    from roseinfer.server.config_file import ConfigFile, read_config

    if path is None:
        return ConfigFile()
    try:
        return read_config(path)
    except OSError as error:
        raise ValueError(f"--config {path}: {no_file(error)}") from error
    except ValueError as error:
        raise ValueError(f"--config {error}") from error


def loader(model: str, settings: dict[str, Any], vocab_size: int | None) -> Callable[[], LLM]:
    """Make a function that loads the model. It raises ValueError for settings that the model cannot have."""

    def load() -> LLM:
        from roseinfer.llm.llm import LLM

        llm = LLM(model, **settings)
        own = llm.model.config.vocab_size
        if vocab_size not in (None, own):
            raise ValueError(f"model_config.vocab_size must be that of {model}, {own}, got {vocab_size}")
        return llm

    return load
