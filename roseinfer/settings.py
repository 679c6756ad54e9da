"""Settings: dataclasses that are a function's arguments, their checks, their place in a record, and a command's flags.

Nothing here imports torch: a command's --help is made of such dataclasses, and is instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from roseinfer.arguments import each_once, require_count, require_counts, require_known
from roseinfer.hardware import best_device

MODEL = "tiny, smollm2, random:gpt2, a local folder in HF format, a .gguf file, or a hub id"
ENGINE = "a folder of Python that makes the steps in place of the engine, such as my_engine; its code is run"
DEVICE = "cpu, cuda, ...; cuda where there is one when not given"

Check = Callable[[str, Any], object]
NATURAL: Check = partial(require_count, at_least=0)
POSITIVE: Check = partial(require_count, at_least=1)
SIZES: Check = require_counts


def names_of(allowed: Iterable[str], at_least: int = 1) -> Check:
    """Make a check of a list of names, each of `allowed` and there once. at_least: how many there must be."""

    def check(argument: str, names: Sequence[str]) -> None:
        for name in each_once(argument, names, at_least):
            require_known(argument, name, allowed)

    return check


def flag(
    default: Any,
    about: str,
    *,
    check: Check | None = None,
    instead: Callable[[], Any] | None = None,
    name: str | None = None,
    short: str | None = None,
    **options: Any,
) -> Any:
    """Make a field that is a flag of a command.

    Args:
        default: of the field and of the flag.
        about: the flag's help.
        check: called with the field's name and any value but None; raises ValueError for a bad one.
        instead: makes the value that None stands for, once settings are made.
        name: of the flag, where it is not the field's.
        short: one letter, such as "-X".
        options: choices, which are checked as well, or metavar.
    """
    metadata = {"help": about, "check": check, "instead": instead, "flag": name, "short": short, "options": options}
    return field(default=default, metadata=metadata)


def device_flag() -> Any:
    """Make the field of a device: the GPU where there is one, unless it is named."""
    return flag(None, DEVICE, instead=best_device)


@dataclass(frozen=True)
class Settings:
    """Base of settings. Raises ValueError, naming the field, for a value that its check or its choices refuse."""

    def __post_init__(self) -> None:
        for own in fields(self):
            value, about = getattr(self, own.name), own.metadata
            if value is None:
                if own.default is not None:
                    raise ValueError(f"{own.name} must have a value, got None")
                if about.get("instead"):
                    object.__setattr__(self, own.name, about["instead"]())
            elif about.get("check"):
                about["check"](own.name, value)
            elif choices := about.get("options", {}).get("choices"):
                require_known(own.name, value, choices)

    def record(self) -> dict[str, Any]:
        """Return the settings as the arguments of a result, in values that JSON has."""
        return {own.name: _as_json(getattr(self, own.name)) for own in fields(self)}


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return str(value) if isinstance(value, Path) else value
