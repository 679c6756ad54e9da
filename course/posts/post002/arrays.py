"""Post 002: which types the host gives token ids and results, and where it writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

from roseinfer.profiling.clock import seconds_of

from ..data import post_table
from ..report.content import Exact, Fact, Time, judge, judge_claim
from ..report.template import Values
from .token_arrays import ids_of, write_each, write_overlapping

REPEATS = 20


def dtype_section(about: Mapping[str, Any]) -> Values:
    batch, length = about["decode_batch_size"], about["seq_length"]
    step_ms = post_table("003", "steps").set_index("model").loc["7B", "step_ms"]
    facts: list[Fact] = []
    times: list[Time] = []
    rows: list[list[Exact]] = []
    for row in post_table("002", "dtypes").itertuples():
        for when, dtype, printed in (("before", None, row.dtype_before), ("corrected", np.int32, row.dtype_after)):
            make = ids_of(row.made_by, batch, length, dtype)
            array = make()
            what = f"{row.array}, {when}"
            facts.append(judge(f"type of {what}", printed, str(array.dtype), why="NumPy's rules"))
            rows.append([what, str(array.dtype), array.nbytes])
            seconds = median(seconds_of(make) for _ in range(REPEATS))
            times.append(Time(f"making {what}", "ms", None, 1e3 * seconds))
    return {"batch": batch, "length": length, "step_ms": step_ms, "facts": facts, "times": times, "rows": rows}


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
    right = judge_claim(
        about,
        "claims.tokens_in_their_slot",
        f"requests of a prefill batch of {batch} that find their token in their slot",
        next(iter(counts.values()))["right"],
        rule=1,
        why="only the first slot of the first turn is not written over",
    )
    rows = [[name, *count.values()] for name, count in counts.items()]
    return {"batch": batch, "slots": num_slots, "facts": [right], "rows": rows}


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
