"""Access to the stages at run time: they import the library, so no module of it may import them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import unknown_name
from roseinfer.cli.command import require_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from roseinfer.stage import Stage


def stages_package() -> ModuleType:
    """Return the package `stages`."""
    return importlib.import_module("stages")


def rungs() -> list[type[Stage]]:
    """Return all stages, and the finished engine as the last one."""
    from roseinfer.engine.as_stage import EngineStage

    return [*stages_package().LADDER, EngineStage]


def chosen_stages(spec: str | None, flag: str = "--stages") -> list[type[Stage]]:
    """Return the stages that `spec` names ("s01,s03_select_append,engine"), in its order; None: all, the engine last.

    Raises ValueError, with the flag that asked for it, for an unknown one.
    """
    stages = rungs()
    require_named(flag, spec)
    if spec is None:
        return stages
    by_name = {name: stage for stage in stages for name in (stage.name, stage.name.split("_")[0])}
    chosen = [name.strip() for name in spec.split(",")]
    for name in chosen:
        if name not in by_name:
            unknown = unknown_name(name, [stage.name for stage in stages])
            raise ValueError(f"{flag}: unknown stage {unknown}, or the first part (s01)")
    return [by_name[name] for name in chosen]


def engine_at(folder: str, flag: str = "--engine") -> type[Stage]:
    """Run the package in a folder and return its class MyEngine. Raises ValueError, with the flag that asked for it."""
    path = Path(folder).expanduser() / "__init__.py"
    if not path.is_file():
        raise ValueError(f"{flag} {folder}: must be a folder with an __init__.py that has a class MyEngine")
    name = f"engine_at.{path.parent.resolve().name}"  # a folder named json must not become the module json
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, "a file that ends in .py has both"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{flag} {folder}: {type(error).__name__}: {error}") from error
    if not hasattr(module, "MyEngine"):
        raise ValueError(f"{flag} {folder}: its __init__.py has no class MyEngine")
    return module.MyEngine


def with_stage(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of LLM where "engine", a folder, is replaced by its class as "stage"."""
    others = {name: value for name, value in given.items() if name != "engine"}
    return others | {"stage": engine_at(given["engine"])} if "engine" in given else others


def untimed(stages: Sequence[type[Stage]], device: torch.device) -> dict[str, str]:
    """Return the stages whose times on that device would say nothing, by name, with the reason."""
    reasons = {stage.name: stage.why_untimed(device) for stage in stages}
    return {name: reason for name, reason in reasons.items() if reason}
