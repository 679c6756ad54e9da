"""Comparisons for checkers. Each returns None when all is well, else a sentence that names the mistake."""

from __future__ import annotations

import itertools
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from .wrong import Refusal

if TYPE_CHECKING:
    from torch import Tensor

MOST_DIMENSIONS = 5  # permutations tried: at most 120


def explain_tensor(got: Any, want: Tensor | Refusal, rtol: float = 1e-4, atol: float = 1e-5) -> str | None:
    """Compare type, shape (naming the permutation that would fix it), dtype, device, and then values, NaN first.

    Whole numbers must be exact, whatever rtol and atol are.
    """
    import torch

    if isinstance(want, Refusal):
        return explain_value(got, want)
    if got is None:
        return "got None: is a `return` missing?"
    if not isinstance(got, torch.Tensor):
        return f"expected a tensor, got {type(got).__name__}"
    if not (want.is_floating_point() or want.is_complex()):
        rtol = atol = 0.0
    if got.shape != want.shape:
        shapes = f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
        return shapes + _shape_advice(got, want, rtol, atol)
    if got.dtype != want.dtype:
        return f"dtype {_dtype(got)}, expected {_dtype(want)}"
    if got.device != want.device:
        return f"it lies on {got.device}, expected {want.device}"
    return _explain_values(got, want, rtol, atol)


def _shape_advice(got: Tensor, want: Tensor, rtol: float, atol: float) -> str:
    if got.numel() != want.numel():
        return ""
    if permutation := _permutation(got, want, rtol, atol):
        return f": values right after permute{permutation}"
    if got.squeeze().shape == want.squeeze().shape and _close(got.reshape(want.shape), want, rtol, atol).all():
        return ": values right, only dimensions of size 1 differ"
    return ""


def _permutation(got: Tensor, want: Tensor, rtol: float, atol: float) -> tuple[int, ...] | None:
    """Find the order of dimensions in which got equals want; None if there is none."""
    if got.dim() != want.dim() or got.dim() > MOST_DIMENSIONS:
        return None
    for order in itertools.permutations(range(got.dim())):
        turned = got.permute(order)
        if turned.shape == want.shape and _close(turned, want, rtol, atol).all():
            return order
    return None


def _explain_values(got: Tensor, want: Tensor, rtol: float, atol: float) -> str | None:
    wrong = ~_close(got, want, rtol, atol)
    num_wrong = int(wrong.sum())
    if num_wrong == 0:
        return None
    if permutation := _permutation(got, want, rtol, atol):
        return f"dimensions in another order: values right after permute{permutation}"
    num_nan = int((got.isnan() & ~want.isnan()).sum())
    if num_nan:
        return f"{num_nan} of {want.numel()} values are NaN, first at {_first(got.isnan() & ~want.isnan())}"
    first = _first(wrong)
    values = f"got {_value(got[first])}, expected {_value(want[first])}"
    return f"{num_wrong} of {want.numel()} values differ, first at {first}: {values}"


def _close(got: Tensor, want: Tensor, rtol: float, atol: float) -> Tensor:
    """Compare element by element, in double precision, whatever devices the two are on."""
    import torch

    wide = torch.complex128 if got.is_complex() or want.is_complex() else torch.float64
    return torch.isclose(got.detach().cpu().to(wide), want.detach().cpu().to(wide), rtol, atol, equal_nan=True)


def _first(mask: Tensor) -> tuple[int, ...]:
    return tuple(mask.nonzero()[0].tolist())


def _value(element: Tensor) -> str:
    value = element.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def explain_value(got: Any, want: Any) -> str | None:
    """Compare a value with the expected one. Lists, tuples and arrays are alike, and so are numbers of any type."""
    if isinstance(want, Real) and not isinstance(want, bool):
        got = _one_element(got)
        if (message := _not_a_number(got)) or _equal(got, want):
            return message
        return f"you return {_number(got)}, expected {_number(want)}"
    if got is None:
        return "got None: is a `return` missing?"
    got, want = plain(got), plain(want)
    is_truth = isinstance(want, bool)
    return (
        None
        if got == want and isinstance(got, bool) == is_truth
        else f"you return {_short(got)}, expected {_short(want)}"
    )


def plain(value: Any) -> Any:
    """Convert arrays, tensors and tuples to Python's own numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [plain(element) for element in value]
    return value


def _one_element(value: Any) -> Any:
    """Take the element out of an array or a tensor that has just one; return anything else as it is."""
    return value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value


def _not_a_number(got: Any) -> str | None:
    if got is None:
        return "got None: is a `return` missing?"
    if hasattr(got, "item"):
        return "expected one number, got several"
    if isinstance(got, bool) or not isinstance(got, Real):
        return f"expected a number, got {type(got).__name__}"
    return None


def _equal(got: Real, want: Real) -> bool:
    """Compare two numbers: exactly if a whole number is wanted, else up to the rounding of floats."""
    return got == want if isinstance(want, Integral) else math.isclose(got, want, rel_tol=1e-9)


def _number(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:,.10g}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def explain_tokens(got: Any, want: list[int] | list[list[int]]) -> str | None:
    """Name the first token id that differs, in one sequence or in several."""
    got = got.tolist() if hasattr(got, "tolist") else got
    if got is None:
        return "got None: is a `return` missing?"
    if not isinstance(got, (list, tuple)):
        return f"expected a list of token ids, got {type(got).__name__}"
    if want and isinstance(want[0], (list, tuple)):
        if len(got) != len(want):
            return f"{len(got)} sequences, expected {len(want)}"
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            if mistake := explain_tokens(one, other):
                return f"sequence {i}: {mistake}"
        return None
    for i, (token, right) in enumerate(zip(got, want, strict=False)):
        if token != right:
            return f"token {i} is {token!r}, expected {right}" + (f"; the {i} before it are right" if i else "")
    if len(got) != len(want):
        return f"{len(got)} tokens, expected {len(want)}; the first {min(len(got), len(want))} are right"
    return None
