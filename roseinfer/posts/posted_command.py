"""A post's own command line, with what is different here."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping

from roseinfer.bench.scheduler.arguments import add_arguments

from .data import post_facts

MODULE = "roseinfer.benchmark_scheduler"


def arguments_here(post: str, changes: Mapping[str, str | None]) -> list[str]:
    """The arguments of the post's command. changes: a flag's value here; None leaves the flag out.

    A flag that the post does not give is added at the end.
    """
    words = shlex.split(post_facts(post)["command"])
    given = words[words.index("-m") + 2 :]
    kept: list[str] = []
    added = {flag: value for flag, value in changes.items() if value is not None}
    while given:
        flag, *given = given
        value = [given.pop(0)] if given and not given[0].startswith("--") else []
        if flag not in changes:
            kept += [flag, *value]
        elif flag in added:
            kept += [flag, added.pop(flag)]
    return kept + [word for pair in added.items() for word in pair]


def command_line(arguments: list[str]) -> str:
    """As one types it."""
    return f"python -m {MODULE} {shlex.join(arguments)}"


def parsed(arguments: list[str]) -> argparse.Namespace:
    """What our benchmark makes of them."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)
