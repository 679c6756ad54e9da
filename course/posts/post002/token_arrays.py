"""What a serving loop in NumPy does to token ids on the host: their types, and where a prefill writes its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


def padded_ids(batch_size: int, seq_length: int, zeros_dtype: DTypeLike | None = None) -> np.ndarray:
    """Pad one int32 id a sequence with zeros to [batch_size, seq_length]. zeros_dtype: None leaves it to NumPy."""
    token_ids = np.ones((batch_size, 1), dtype=np.int32)
    zeros = np.zeros((batch_size, seq_length - 1), **_given(zeros_dtype))
    return np.concatenate((token_ids, zeros), axis=1)


def filled_ids(batch_size: int, seq_length: int, dtype: DTypeLike | None = None) -> np.ndarray:
    """Make padding ids [batch_size, seq_length]. dtype: None leaves it to NumPy."""
    return np.full((batch_size, seq_length), 0, **_given(dtype))


def _given(dtype: DTypeLike | None) -> dict[str, Any]:
    return {} if dtype is None else {"dtype": dtype}


def ids_of(made_by: str, batch_size: int, seq_length: int, dtype: DTypeLike | None) -> Callable[[], np.ndarray]:
    """Return a maker of ids that uses NumPy's function of that name: "concatenate" pads them, "full" fills them."""
    return partial({"concatenate": padded_ids, "full": filled_ids}[made_by], batch_size, seq_length, dtype)


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
