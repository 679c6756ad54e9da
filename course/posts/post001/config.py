"""Post 001's closing lesson: which classes refuse a misspelt argument, tried here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass

from roseinfer.planning.sizes import PlannedEngine

from ..data import post_facts
from ..report.template import Values

MODEL = "random:gpt2"  # nothing of it is read or made


def config_lesson() -> Values:
    """Give the post's argument that no field has to three classes."""
    wrong = post_facts("001")["refused_argument"]
    ((name, value),) = wrong.items()
    plain = make_dataclass("Plain", [("num_blocks", int)])
    slotted = make_dataclass("Slotted", [("num_blocks", int)], slots=True)
    tried = [
        (f"PlannedEngine(model={MODEL!r}, {name}={value})", lambda: PlannedEngine(model=MODEL, **wrong)),
        (f"a dataclass: Plain({name}={value})", lambda: plain(**wrong)),
        (f"a dataclass with slots: Slotted({name}={value})", lambda: slotted(**wrong)),
        (f"a dataclass, later: plain.{name} = {value}", lambda: setattr(plain(value), name, value)),
        (f"a dataclass with slots, later: slotted.{name} = {value}", lambda: setattr(slotted(value), name, value)),
    ]
    return {
        "argument": f"{name}={value}",
        "command": f"roseinfer dry-run --model {MODEL} --{name.replace('_', '-')} {value}",
        "tried": [[what, _answer(attempt)] for what, attempt in tried],
    }


def _answer(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
