"""find_races: elements that one task of a parallel loop writes and another one reads or writes."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from roseinfer.arguments import counted
from roseinfer.display.view import View, card

from .watched import Log, watch


@dataclass(frozen=True)
class Race:
    """An element of an array. loop: which parallel loop of the function, from 0. writers, others: tasks."""

    array: str
    index: tuple[int, ...]
    loop: int
    writers: tuple[int, ...]
    others: tuple[int, ...]

    def __str__(self) -> str:
        at = f"{self.array}[{', '.join(map(str, self.index))}]" if self.index else self.array
        if len(self.writers) > 1:
            return f"{at}: {_tasks(self.writers)} write it"
        read = "reads" if len(self.others) == 1 else "read"
        return f"{at}: {_tasks(self.writers)} writes it, {_tasks(self.others)} {read} it"


def _tasks(tasks: tuple[int, ...]) -> str:
    names = ", ".join(map(str, tasks[:6])) + (" and more" if len(tasks) > 6 else "")
    return f"task {names}" if len(tasks) == 1 else f"tasks {names}"


@dataclass(frozen=True, repr=False)
class Races(View):
    """What find_races found: true when there is a race."""

    races: tuple[Race, ...]
    num_loops: int

    def __bool__(self) -> bool:
        return bool(self.races)

    def __repr__(self) -> str:
        loops = counted(self.num_loops, "parallel loop")
        if not self.races:
            return f"{loops}, no race"
        first = "\n".join(map(str, self.races[:4]))
        more = f"\n... and {len(self.races) - 4:,} more elements" if len(self.races) > 4 else ""
        return f"{loops}, a race in {counted(len(self.races), 'element')}\n{first}{more}"

    def to_html(self) -> str:
        return card(f"<pre>{html.escape(repr(self))}</pre>", "not yet" if self.races else "good")


def find_races(function: Callable[..., Any], **arguments: Any) -> Races:
    """Run a function's loops as plain Python on arguments by name, in the order of its parameters, and find its races.

    Two tasks of one parallel loop may run at the same time or in any order. So an element that one of them writes and
    another one touches is a race, even if a run happens to give the right result. Between two loops all tasks of the
    first one are over.
    """
    copies = {name: x.copy() if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    _, log = watch(function, copies)
    return Races(tuple(races_of(log, copies)), len(log.tasks))


def races_of(log: Log, arrays: dict[str, Any]) -> list[Race]:
    found = []
    for (array, loop, element), writers in log.writes.items():
        readers = log.reads.get((array, loop, element), set())
        if len(writers | readers) > 1:
            shape = arrays[array].shape if array in arrays else ()
            index = tuple(map(int, np.unravel_index(element, shape))) if shape else ()
            found.append(Race(array, index, loop, tuple(sorted(writers)), tuple(sorted(readers - writers))))
    return found
