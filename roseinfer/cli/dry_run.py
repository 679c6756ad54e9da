"""python -m roseinfer.cli.dry_run: every size of an engine, without a weight or a GPU. Run it before a long job."""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from roseinfer.engine.config import EngineSizes

BAD_ARGUMENT = 2


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, whether or not the engine fits this machine; 2 for a bad argument."""
    given, unknown = parser().parse_known_args(argv)
    try:
        # Imported here, so that --help does not wait for torch.
        from roseinfer.arguments import unknown_name
        from roseinfer.engine.config import EngineConfig

        if unknown:
            flag = unknown[0].split("=")[0]
            flags = [f"--{field.name.replace('_', '-')}" for field in fields(EngineConfig)]
            raise ValueError(f"unknown argument {unknown_name(flag, flags)}")
        show(EngineConfig(**vars(given)).sizes())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_ARGUMENT
    return 0


class OneLineParser(argparse.ArgumentParser):
    """Without the usage before an error: what is wrong is one line, as for any other bad argument."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_ARGUMENT, f"error: {message}\n")


def parser() -> argparse.ArgumentParser:
    """One flag a field of EngineConfig. A flag that is not given is left out: the defaults are EngineConfig's."""
    p = OneLineParser(
        prog="python -m roseinfer.cli.dry_run",
        description="Print the size of an engine's weights, KV pool and block tables; allocate none of them.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,  # --num-block would pass for --num-blocks
    )
    p.add_argument("--model", help="tiny, random:gpt2, a local folder in HF format, or a hub id (required)")
    p.add_argument("--num-blocks", type=int, help="blocks of the KV pool (required)")
    p.add_argument("--block-size", type=int, help="tokens of a block")
    p.add_argument("--max-num-seqs", type=int, help="sequences held at a time")
    p.add_argument("--max-model-len", type=int, help="tokens of the longest sequence; the model's when not given")
    p.add_argument("--dtype", help="float32, float16 or bfloat16, of weights and KV pool")
    p.add_argument("--device", help="cpu, cuda, ...: need not be here")
    return p


def show(sizes: EngineSizes) -> None:
    from roseinfer.display import Table

    print(Table.of(sizes))
    if fit := sizes.fit():
        print(f"fits: {fit[1]}")


if __name__ == "__main__":
    sys.exit(main())
