"""Post 001's closing lesson: what refuses a misspelt argument, tried here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import make_dataclass

from roseinfer.engine.config import EngineConfig

from ..data import post_facts
from ..report.content import Grid, Section

MODEL = "random:gpt2"  # nothing of it is read or made


def config_lesson() -> Section:
    """The post's argument that no field has, given to three classes."""
    wrong = post_facts("001")["refused_argument"]
    ((name, value),) = wrong.items()
    plain = make_dataclass("Plain", [("num_blocks", int)])
    slotted = make_dataclass("Slotted", [("num_blocks", int)], slots=True)
    tried = [
        (f"EngineConfig(model={MODEL!r}, {name}={value})", lambda: EngineConfig(model=MODEL, **wrong)),
        (f"a dataclass: Plain({name}={value})", lambda: plain(**wrong)),
        (f"a dataclass with slots: Slotted({name}={value})", lambda: slotted(**wrong)),
        (f"a dataclass, later: plain.{name} = {value}", lambda: setattr(plain(value), name, value)),
        (f"a dataclass with slots, later: slotted.{name} = {value}", lambda: setattr(slotted(value), name, value)),
    ]
    return Section(
        "A misspelt argument",
        text=[
            f"The post's benchmark passed `{name}={value}` to a config without such a field, and that showed only when "
            "it ran on a GPU. The post says that a dataclass with slots accepts no undeclared argument.",
            "No dataclass does, with or without slots. What slots refuse besides is an undeclared attribute, set "
            "later. The post's lesson stands: a dry run that builds the config, without a GPU. The error here names "
            "the nearest field.",
        ],
        code=f"roseinfer dry-run --model {MODEL} --{name.replace('_', '-')} {value}",
        grids=[Grid("Tried here", ["what", "answer"], [[what, _answer(attempt)] for what, attempt in tried])],
    )


def _answer(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (AttributeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"
