"""Detection of other programs on the cores that a measurement needs: they make its times wrong for this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TASKS = Path("/proc/self/task")
BUSY = "This machine is busy"
# Alone on its cores a run waits for 0 to 3% of its time; beside one other busy program, for more than 100%.
MOST_WAITING = 0.1
# Seconds. A race of 0.2 s is interrupted for a time slice or two on any machine, and that is 10% of it.
WAITING_OF_NOTE = 0.05
# Of the fastest run. On a quiet machine runs of one contender stay below half of it.
MOST_SPREAD = 0.3


def waited_seconds(tasks: Path = TASKS) -> float | None:
    """Add up how long this process's threads were ready to run and had no core; None where that is not known.

    Linux counts it for each thread (Documentation/scheduler/sched-stats.rst), so other programs' use of other cores,
    and of other containers' cores, does not count.
    """
    waited = 0
    try:
        for task in tasks.iterdir():
            try:
                waited += int((task / "schedstat").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
                continue
    except (OSError, IndexError, ValueError):
        return None
    return waited / 1e9


def with_waiting(work: Callable[[], T], tasks: Path = TASKS) -> tuple[T, float | None]:
    """Return the result of `work`, and how long this process's threads waited for a core (see waited_seconds)."""
    before = waited_seconds(tasks)
    result = work()
    after = waited_seconds(tasks)
    # Threads that ended in between took their count with them.
    return result, None if before is None or after is None else max(0.0, after - before)


def apart(one: float, other: float) -> bool:
    """Tell whether two measurements of the same thing are too far apart for a quiet machine."""
    return abs(one - other) > MOST_SPREAD * max(one, other)


def busy_sentence(samples: Iterable[Mapping[str, Any]]) -> str:
    """Return the warning that a page shows above the times of a busy machine; empty on a quiet one."""
    signs = busy_signs(samples)
    return f"{BUSY}: {'; '.join(signs)}. Close other programs and run this again." if signs else ""


def busy_signs(samples: Iterable[Mapping[str, Any]]) -> list[str]:
    """List what a quiet machine would not have shown, one clause each; empty when nothing was seen.

    samples: those that interleave.measure returns. Samples without tokens_per_second are judged by their waiting alone.
    """
    samples = list(samples)
    signs = []
    timed = [s for s in samples if s.get("waited_seconds") is not None]
    waited, seconds = sum(s["waited_seconds"] for s in timed), sum(s["seconds"] for s in timed)
    if waited > max(WAITING_OF_NOTE, MOST_WAITING * seconds):
        signs.append(f"threads of this race waited {waited:.1f} s for a core in {seconds:.1f} s")
    judged = [s for s in samples if "tokens_per_second" in s]
    for name in dict.fromkeys(s["name"] for s in judged):
        speeds = [s["tokens_per_second"] for s in judged if s["name"] == name]
        if apart(min(speeds), max(speeds)):
            signs.append(f"runs of {name} lie between {min(speeds):,.0f} and {max(speeds):,.0f} tok/s")
    return signs
