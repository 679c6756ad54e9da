"""Post 002: which types the host gives token ids and results, and where it writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from roseinfer.profiling.clock import seconds_of

from ..data import post_table
from ..report.content import Exact, Fact, Ruled, judge, judged, times_here
from ..report.template import Values

REPEATS = 20


def dtype_section(about: Mapping[str, Any]) -> Values:
    batch, length = about["decode_batch_size"], about["seq_length"]
    step_ms = post_table("003", "steps").set_index("model").loc["7B", "step_ms"]
    facts: list[Fact] = []
    seconds: dict[str, float] = {}
    rows: list[list[Exact]] = []
    for row in post_table("002", "dtypes").itertuples():
        for when, dtype, printed in (("before", None, row.dtype_before), ("corrected", np.int32, row.dtype_after)):
            make = ids_of(row.made_by, batch, length, dtype)
            array = make()
            what = f"{row.array}, {when}"
            facts.append(judge(f"type of {what}", printed, str(array.dtype), why="NumPy's rules"))
            rows.append([what, str(array.dtype), array.nbytes])
            seconds[f"making {what}"] = median(seconds_of(make) for _ in range(REPEATS))
    return {
        "step_ms": step_ms,
        "facts": facts,
        "times": times_here(seconds),
        "rows": rows,
    }


def write_section(about: Mapping[str, Any]) -> Values:
    batch, num_slots = about["prefill_batch_size"], about["decode_batch_size"]
    neighbours, scattered = list(range(batch)), list(range(0, num_slots, num_slots // batch))
    cases = {
        f"overlapping, {batch} neighbouring slots": (write_overlapping, neighbours),
        f"overlapping, {batch} scattered slots": (write_overlapping, scattered),
        "overlapping, a batch of 1": (write_overlapping, neighbours[:1]),
        f"each to its own, {batch} neighbouring slots": (write_each, neighbours),
    }
    counts = {name: prefill_counts(write, slots, num_slots) for name, (write, slots) in cases.items()}
    what = f"requests of a prefill batch of {batch} that find their token in their slot"
    facts = judged("002", {what: Ruled(next(iter(counts.values()))["right"], 1)})
    rows = [[name, *count.values()] for name, count in counts.items()]
    return {"facts": facts, "rows": rows}


def prefill_counts(write: Callable[..., np.ndarray], slots: list[int], places: int) -> dict[str, int]:
    """Write one token for each slot into a buffer of running requests' tokens, and count what it then holds."""
    others = np.arange(places, dtype=np.int32) + places
    token_ids = np.arange(len(slots), dtype=np.int32)  # no other request has one of these
    room = places + len(slots)  # the last turn of the overlapping write may reach past the last place
    buffer = np.concatenate((others, np.full(room - places, -1, dtype=np.int32)))
    writes = write(token_ids, slots, buffer)
    right = int((buffer[slots] == token_ids).sum())
    untouched = np.setdiff1d(np.arange(places), slots)
    lost = int((buffer[untouched] != others[untouched]).sum())
    return {"right": right, "wrong": len(slots) - right, "lost": lost, "repeated": int((writes > 1).sum())}


def ids_of(made_by: str, batch_size: int, seq_length: int, dtype: DTypeLike | None) -> Callable[[], np.ndarray]:
    """Return a maker of ids [batch_size, seq_length]. dtype: None leaves it to NumPy.

    made_by: "full" fills an array with padding, "concatenate" pads one int32 id a sequence with zeros.
    """
    given: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    if made_by == "full":
        return lambda: np.full((batch_size, seq_length), 0, **given)
    token_ids = np.ones((batch_size, 1), dtype=np.int32)
    return lambda: np.concatenate((token_ids, np.zeros((batch_size, seq_length - 1), **given)), axis=1)


def write_overlapping(token_ids: np.ndarray, slots: Sequence[int], buffer: np.ndarray) -> np.ndarray:
    """Write the whole batch from each slot on, as the post does. Returns how often each buffer place was written."""
    writes = np.zeros(len(buffer), dtype=np.int64)
    for slot in slots:
        places = slice(slot, slot + len(token_ids))
        buffer[places] = token_ids
        writes[places] += 1
    return writes


def write_each(token_ids: np.ndarray, slots: Sequence[int], buffer: np.ndarray) -> np.ndarray:
    """Write each token to its request's slot. Returns how often each buffer place was written."""
    buffer[slots] = token_ids
    return np.bincount(slots, minlength=len(buffer))
