"""A mutant: a stage that is wrong in one thing, and the promises of which one has to name it."""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import roseinfer.blocks
import roseinfer.stage
from roseinfer.stage import Stage
from stages import NaiveCat

_number = itertools.count()


@dataclass(frozen=True)
class Mutant:
    """make() gives the class. named: the promises that may be the first to be broken."""

    name: str
    make: Callable[[], type[Stage]]
    named: tuple[str, ...]

    def __repr__(self) -> str:
        return self.name


def by_hand(stage_class: type[Stage], *named: str) -> Mutant:
    return Mutant(stage_class.__name__, lambda: stage_class, named)


def edit(base: type[Stage], name: str, old: str, new: str, *named: str) -> Mutant:
    """The stage's own file with one piece of its source replaced."""

    def make() -> type[Stage]:
        return getattr(edited(sys.modules[base.__module__], old, new), base.__name__)

    return Mutant(f"{base.name[:3]}: {name}", make, named)


def edit_blocks(name: str, old: str, new: str, *named: str) -> Mutant:
    """A stage whose books are BlockTables with one piece of their source replaced."""

    def make() -> type[Stage]:
        module = edited(roseinfer.blocks, old, new)
        module.OutOfBlocks = roseinfer.blocks.OutOfBlocks

        class OtherBooks(NaiveCat):
            def __init__(self, model, **sizes):
                super().__init__(model, **sizes)
                self.tables = module.BlockTables(self.tables.num_tables, self.tables.num_blocks, self.tables.block_size)

        return OtherBooks

    return Mutant(f"blocks: {name}", make, named)


def edit_template(name: str, old: str, new: str, *named: str) -> Mutant:
    """A stage on the template of prefill, decode and free with one piece of its source replaced."""

    def make() -> type[Stage]:
        template = vars(edited(roseinfer.stage, old, new).Stage)
        methods = (
            "prefill",
            "claimed",
            "prompt_logits",
            "decode",
            "inputs",
            "free",
            "positions",
            "check_fits",
            "_check_decodable",
        )
        return type("OtherTemplate", (NaiveCat,), {name: template[name] for name in methods})

    return Mutant(f"stage: {name}", make, named)


def edited(module: types.ModuleType, old: str, new: str) -> types.ModuleType:
    """A copy of a module with `old`, which must occur once, replaced. Its lines are known to linecache (Triton reads
    them, and so does a traceback)."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    if source.count(old) != 1:
        raise ValueError(f"{module.__name__} has {source.count(old)} times {old!r}, expected once")
    source = source.replace(old, new)
    copy = types.ModuleType(f"{module.__package__}.mutant_{next(_number)}")
    copy.__package__ = module.__package__
    copy.__file__ = f"<{copy.__name__}>"
    linecache.cache[copy.__file__] = len(source), None, source.splitlines(keepends=True), copy.__file__
    sys.modules[copy.__name__] = copy
    exec(compile(source, copy.__file__, "exec"), vars(copy))
    return copy
