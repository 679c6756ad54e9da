"""What a step costs in time: coefficients fitted to measured steps, or the floor of a machine that is not here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import median
from typing import Any, Protocol

import numpy as np
import torch

from roseinfer.arguments import require_not_negative
from roseinfer.engine.config import DTYPE_BYTES
from roseinfer.models import model_config
from roseinfer.profiling.data_sheets import data_sheet
from roseinfer.profiling.floors import StepTerms, step_terms

from .work import StepWork

FEW_TOKENS = 16
TERMS = ("fixed", *StepWork._fields, "first_tokens")


class Cost(Protocol):
    """Interface of a cost. about: one sentence on where the times come from."""

    @property
    def about(self) -> str: ...

    def seconds(self, work: StepWork) -> tuple[float, float]:
        """Return the host's part of a step, and the part of the model and its device, launches included, in seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the cost for JSON."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """One measured step, in seconds. host: schedule and commit. device: all between, from inputs to tokens read."""

    work: StepWork
    host: float
    device: float


@dataclass(frozen=True)
class FittedCost:
    """A sum of terms for each of the two parts of a step, none below 0.

    The coefficients are seconds a step, a sequence, a token and so on, in the order of TERMS. The last is what each of
    the first FEW_TOKENS tokens costs beside that: a matrix product makes poor use of a few rows. errors: relative, of
    each kind of step that was measured. samples: those steps.
    """

    about: str
    host: tuple[float, ...]
    device: tuple[float, ...]
    errors: tuple[float, ...]
    samples: tuple[StepSample, ...]

    def seconds(self, work: StepWork) -> tuple[float, float]:
        _, a, b, c, d, e, f, g = terms_of(work)
        h, r = self.host, self.device
        return (
            h[0] + h[1] * a + h[2] * b + h[3] * c + h[4] * d + h[5] * e + h[6] * f + h[7] * g,
            r[0] + r[1] * a + r[2] * b + r[3] * c + r[4] * d + r[5] * e + r[6] * f + r[7] * g,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the cost for JSON, with samples as rows of numbers: those of the work, then host and device."""
        return {
            "kind": "fitted",
            "about": self.about,
            "terms": list(TERMS),
            "host": list(self.host),
            "device": list(self.device),
            "errors": list(self.errors),
            "samples": [[*s.work, s.host, s.device] for s in self.samples],
        }


def terms_of(work: StepWork) -> tuple[int, ...]:
    """Count how much of each of TERMS a step has."""
    return 1, *work, min(work.num_decodes + work.prompt_tokens, FEW_TOKENS)


def fit(about: str, samples: Iterable[StepSample]) -> FittedCost:
    """Fit a cost by least squares of errors relative to the whole step, so that short and long steps count alike.

    Steps with the same work count by their median: one that another process held up says nothing about the others.
    Raises ValueError for fewer kinds of steps than terms.
    """
    samples = tuple(samples)
    kinds: dict[StepWork, list[StepSample]] = {}
    for sample in samples:
        kinds.setdefault(sample.work, []).append(sample)
    if len(kinds) < len(TERMS):
        raise ValueError(f"samples must be of at least {len(TERMS)} kinds of steps to fit them, got {len(kinds)}")
    measured = np.array([median(s.host + s.device for s in same) for same in kinds.values()])
    rows = np.array([terms_of(work) for work in kinds]) / measured[:, None]
    parts = {name: [median(getattr(s, name) for s in same) for same in kinds.values()] for name in ("host", "device")}
    host, device = (nonnegative_least_squares(rows, np.array(times) / measured) for times in parts.values())
    errors = rows @ (np.array(host) + np.array(device)) - 1
    return FittedCost(about, host, device, tuple(errors.tolist()), samples)


def nonnegative_least_squares(a: np.ndarray, b: np.ndarray) -> tuple[float, ...]:
    """Find the x >= 0 that makes |a x - b| least. a [M, N], b [M], N small.

    At the best x some coefficients are 0, and the others are the plain least squares of their columns. So the least
    squares of each choice of columns are tried: 2^N of them.
    """
    scale = np.abs(a).max(axis=0)
    scale[scale == 0] = 1
    a = a / scale
    best, least = np.zeros(a.shape[1]), float(b @ b)
    for size in range(1, a.shape[1] + 1):
        for columns in combinations(range(a.shape[1]), size):
            x = np.linalg.lstsq(a[:, columns], b, rcond=None)[0]
            error = float(((a[:, columns] @ x - b) ** 2).sum())
            if (x >= 0).all() and error < least:
                best, least = np.zeros(a.shape[1]), error
                best[list(columns)] = x
    return tuple((best / scale).tolist())


@dataclass(frozen=True)
class FloorCost:
    """The roofline of a step: its bytes over the bandwidth or its operations over their rate, whichever takes longer.

    No step is faster. host_seconds: the host's time for a step, added as an assumption.
    """

    about: str
    terms: StepTerms
    read_bytes_per_s: float
    flops_per_s: float
    host_seconds: float = 0.0

    def seconds(self, work: StepWork) -> tuple[float, float]:
        num_seqs, num_decodes, prompt_tokens, decode_context, prompt_context, prompt_pairs = work
        moved = self.terms.weight_bytes + self.terms.kv_bytes * (decode_context + prompt_context)
        flops = self.terms.flops(num_seqs, num_decodes + prompt_tokens, decode_context + prompt_pairs)
        return self.host_seconds, max(moved / self.read_bytes_per_s, flops / self.flops_per_s)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "floor", **asdict(self)}


def floor_cost(gpu: str, spec: str, dtype: str, host_seconds: float = 0.0) -> FloorCost:
    """Compute the floor of a model's shape on a GPU of roseinfer/data/gpus.json.

    Raises ValueError for an unknown GPU, a dtype whose rate its data sheet does not tell, and a host_seconds below 0.
    """
    require_not_negative("host_seconds", host_seconds)
    sheet = data_sheet(gpu)
    rate = f"fp{8 * DTYPE_BYTES[dtype]}_flops_per_s"
    if rate not in sheet:
        known = [name for name, nbytes in DTYPE_BYTES.items() if f"fp{8 * nbytes}_flops_per_s" in sheet]
        raise ValueError(f"dtype={dtype!r}: the data sheet of {gpu} tells no rate of it, allowed: {', '.join(known)}")
    told = (
        f"Step times: a FLOOR, not a measurement. {spec} in {dtype} on {gpu}: bytes over "
        f"{sheet['read_bytes_per_s'] / 1e12:.2f} TB/s or operations over {sheet[rate] / 1e12:.1f} TFLOP/s, whichever "
        f"takes longer ({sheet['source']}). No real step is faster. Host, assumed: {1e3 * host_seconds:g} ms a step."
    )
    terms = step_terms(model_config(spec), getattr(torch, dtype))
    return FloorCost(told, terms, sheet["read_bytes_per_s"], sheet[rate], host_seconds)
