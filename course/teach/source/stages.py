"""show_stage and show_diff: a stage's source, and what it changes against another, method by method."""

from __future__ import annotations

import ast
import html
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from roseinfer.display.view import View, card, prose

from . import listing, members


@dataclass(frozen=True, repr=False)
class StageSource(View):
    cls: type
    header: str  # the module's docstring; the class's own for a class from a notebook
    source: str  # without the header

    def __repr__(self) -> str:
        bases = ", ".join(base.__name__ for base in self.cls.__bases__)
        return (
            f"{_place(self.cls)}\n"
            f"class {self.cls.__name__}({bases})\n"
            f"defines {', '.join(members.own_methods(self.cls)) or 'no method'}\n"
            f"{members.count_code_lines(self.source)} lines of code"
        )

    def to_html(self) -> str:
        lines = members.count_code_lines(self.source)
        summary = f"<code>{html.escape(_place(self.cls))}</code>, {lines} lines of code"
        return card(prose(self.header) + listing.fold(summary, listing.listing(self.source), lines))


def show_stage(cls: type) -> StageSource:
    """Show a stage's module: its header as prose, its code in colours. A class from a notebook cell is shown alone.

    Raises ValueError if cls is not a class, or has no source.
    """
    _require_class("cls", cls)
    if cls.__module__ == "__main__":
        return StageSource(cls, inspect.cleandoc(cls.__doc__ or ""), members.class_source(cls))
    header, source = _split_header(members.module_source(cls))
    return StageSource(cls, header, source)


@dataclass(frozen=True)
class Change:
    """One method or helper. exercise: id of the exercise that asks for it, whose code is not shown; empty for none.

    old is empty for a new one, and for one that extends the old by calling it with super(); new is empty for one that
    is gone.
    """

    name: str
    kind: Literal["changed", "extends", "new", "gone"]
    old: str
    new: str
    exercise: str = ""

    @property
    def counts(self) -> str:
        if self.exercise:
            return f"see exercise {self.exercise}"
        removed, added = listing.line_changes(self.old, self.new)
        return {"changed": f"-{removed} +{added}", "gone": f"-{removed}"}.get(self.kind, f"+{added}")


@dataclass(frozen=True, repr=False)
class StageDiff(View):
    old: type
    new: type
    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        width = max((len(change.name) for change in self.changes), default=0)
        lines = [f"  {c.name:<{width}}  {c.kind:<7}  {c.counts}" for c in self.changes]
        return "\n".join([f"{_name(self.old)} -> {_name(self.new)}", *(lines or ["  no method changed"])])

    def to_html(self) -> str:
        heads = _name(self.old), _name(self.new)
        parts = [f"<p><b><code>{html.escape(heads[0])}</code> → <code>{html.escape(heads[1])}</code></b></p>"]
        lines = 0  # shown so far: the first changes stand open, the rest is a click away
        for change in self.changes:
            what = f"<code>{html.escape(change.name)}</code> {change.kind}, {change.counts}"
            if change.exercise:
                parts.append(f"<p>{what}</p>")
                continue
            lines += len((change.new or change.old).splitlines())
            parts.append(listing.fold(f"{what} lines", _compare(change, heads), lines))
        return card(listing.STYLE + ("".join(parts) if self.changes else parts[0] + "<p>no method changed</p>"))


def show_diff(old: type, new: type, exercises: Mapping[str, str] | None = None) -> StageDiff:
    """Show what `new` does differently, however it inherits: methods as each class finds them, and their helpers.

    exercises: maps the name of a method to the id of the exercise that asks for it; its code is not shown. Works for
    classes from notebook cells. Raises ValueError if one is not a class, or has no source, and for a method that does
    not change.
    """
    _require_class("old", old)
    _require_class("new", new)
    before, after = members.methods(old), members.methods(new)
    replaced = {name for name, function in after.items() if before.get(name) is not function}
    gone = {name: function for name, function in before.items() if name not in after}
    method_changes = _changes(
        {name: members.source_of(f) for name, f in before.items() if name in replaced or name in gone},
        {name: members.source_of(f) for name, f in after.items() if name in replaced},
    )
    changes = [*method_changes, *_changes(members.helpers(old), members.helpers(new))]
    for name in exercises or {}:
        if name not in (changed := [change.name for change in changes]):
            raise ValueError(f"exercises must name what changes, one of {', '.join(changed)}, got {name!r}")
    return StageDiff(old, new, tuple(replace(c, exercise=(exercises or {}).get(c.name, "")) for c in changes))


def _changes(before: dict[str, str], after: dict[str, str]) -> list[Change]:
    changes = []
    for name, source in after.items():
        if name not in before:
            changes.append(Change(name, "new", "", source))
        elif f"super().{name}(" in source:  # the old one's lines still run
            changes.append(Change(name, "extends", "", source))
        elif source != before[name]:
            changes.append(Change(name, "changed", before[name], source))
    return changes + [Change(name, "gone", source, "") for name, source in before.items() if name not in after]


def _compare(change: Change, heads: tuple[str, str]) -> str:
    if change.kind == "changed":
        return listing.side_by_side(change.old, change.new, heads)
    return listing.one_sided(change.new or change.old, "new" if change.new else "old")


def _split_header(source: str) -> tuple[str, str]:
    tree = ast.parse(source)
    header = ast.get_docstring(tree)
    if header is None:
        return "", source.strip("\n")
    return header, "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip("\n")


def _place(cls: type) -> str:
    return "this notebook" if cls.__module__ == "__main__" else cls.__module__.replace(".", "/") + ".py"


def _name(cls: type) -> str:
    return getattr(cls, "name", cls.__name__)


def _require_class(argument: str, cls: object) -> None:
    if not isinstance(cls, type):
        raise ValueError(f"{argument} must be a class such as NaiveCat, got {cls!r}")
