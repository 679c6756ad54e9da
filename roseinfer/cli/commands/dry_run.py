"""Every size of an engine, before a long job: weights, KV pool, buffers.

Nothing of it is allocated, and neither weights nor a GPU are needed.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from roseinfer.cli.flags import add_flags, given_fields
from roseinfer.engine.config import EngineConfig
from roseinfer.settings import MODEL

if TYPE_CHECKING:
    from roseinfer.planning.sizes import EngineSizes

EXAMPLES = (
    "roseinfer dry-run --model random:gpt2 --num-blocks 2048",
    "roseinfer dry-run --model random:qwen2.5-7b --num-blocks 2048 --dtype bfloat16 --device cuda",
)
DRAFTING = '{"method": "draft_model", "model": "tiny", "num_tokens": 4}'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one flag per field of PlannedEngine that sizes depend on."""
    parser.add_argument("--model", help=f"{MODEL} (required)")
    add_flags(parser.add_argument, EngineConfig, num_blocks="blocks of the KV pool (required)")
    parser.add_argument("--dtype", help="float32, float16 or bfloat16; when not given float32, or a GGUF file's blocks")
    parser.add_argument("--quantization", help="int8 or int4 for matrices in 8 or 4 bits, on a CPU")
    parser.add_argument("--device", help="cpu, cuda, ...: need not be here")
    parser.add_argument("--speculative", metavar="JSON", help=f"such as '{DRAFTING}'")


def run(args: argparse.Namespace) -> None:
    """Print the sizes. The exit status is 0, whether or not the engine fits this machine."""
    from roseinfer.planning.sizes import PlannedEngine

    # Not argparse's: it would ask for these before it names a misspelt flag.
    needed = {"--model": args.model, "--num-blocks": args.num_blocks}
    if missing := [flag for flag, value in needed.items() if value is None]:
        raise ValueError(f"missing: {', '.join(missing)}")
    if args.speculative is not None:
        args.speculative = read_json("--speculative", args.speculative)
    show(PlannedEngine(**given_fields(PlannedEngine, args)).sizes())


def read_json(flag: str, text: str) -> dict[str, Any]:
    """Read an object of JSON. Raises ValueError, naming the flag."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{flag} must be JSON such as '{DRAFTING}', got {text!r:.100}")
    return found


def show(sizes: EngineSizes) -> None:
    from roseinfer.display.text_table import Column, TextTable, terminal_width
    from roseinfer.planning.sizes import MIB

    numbers = Column("size", "{:,}".format), Column("MiB", "{:,.3f}".format)
    columns: list[Column | str] = ["what", numbers[0], "unit", numbers[1], "how"]
    rows = [
        (what, size, unit, size / MIB if unit.startswith("bytes") else None, how)
        for what, size, unit, how in sizes.rows()
    ]
    print(sizes.title)
    print(TextTable.of(columns, rows).text(terminal_width()))
    if fit := sizes.fit():
        print(f"fits: {fit[1]}")
