"""What a notebook calls: `from roseinfer import teach; teach.setup()`.

Everything is imported on first use, so that tools which want one small part of it do not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

_HOME = {
    "setup": "setup",
    "device": "setup",
    "show_stage": "source",
    "show_diff": "source",
    "predict": "predict",
    "reveal": "predict",
    "predictions": "predictions",
    "progress": "progress",
    "exercise": "exercise:show_exercise",
    "check": "exercise",
    "hint": "exercise",
    "prove": "prove",
    "race": "race",
    "contract": "contract",
    "draw_seam": "seam",
    "dashboard": "dashboard",
    "compare_shapes": "shapes",
    "sql": "shapes",
    "walk_tokens": "walks",
    "walk_blocks": "walks",
    "draw_recompute": "pictures",
    "draw_floors": "pictures",
    "draw_gather": "pictures",
    "draw_append": "pictures",
    "course_map": "course",
    "data_sheet": ".data_sheets",
    "post_facts": ".posts",
    "post_table": ".posts",
    "beside_post": ".posts",
    "recorded": "recorded",
    "recorded_kernels": "recorded",
    "recorded_trace": "recorded",
    "walk_tables": "table_walk",
    "draw_block_walk": "table_pictures",
    "table_price": "table_price",
    "table_steps": ".bench.table_steps",
    "compare_builds": ".bench.table_steps",
    "draw_rows_built": "rows_picture",
    "figure_alt": "style",
    "paged_case": ".paged_case",
    "count_loads": "loads",
    "side_by_side": "pairs",
    "draw_programs": "program_pictures",
    "phase_shares": "phases",
    "draw_pool_gather": "pool_picture",
    "Schedule": "schedule",
    "record_schedule": "schedule",
    "block_view": "block_view",
    "timeline": "zoom_timeline",
    "roofline": "roofline",
    "step_debugger": "step_debugger",
}

__all__ = list(_HOME)


class _Teach(ModuleType):
    """`import roseinfer.teach.race` would put that module in place of the function `teach.race`; not here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Teach


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, it has {', '.join(__all__)}")
    module, _, attribute = _HOME[name].partition(":")
    value = getattr(importlib.import_module(f".{module}", __name__), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
