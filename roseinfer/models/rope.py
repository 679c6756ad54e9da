"""RoPE, rotary position embedding (Su et al., "RoFormer", 2021), and how models stretch it to longer texts.

Pair i of a head is turned by the angle position * inverse_frequency[i]. The variants differ in these frequencies and,
for YaRN, in a factor on cos and sin. Names and defaults are those of rope_parameters in transformers' config.json.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from math import ceil, floor, log, pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from roseinfer.arguments import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """The original rotary embedding: inverse frequency i of head_dim D is theta ** (-2i / D)."""

    rope_type: str = "default"
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        if ROPE_TYPES.get(self.rope_type) is not type(self):
            raise ValueError(f"rope_type={self.rope_type!r} is not the type of a {type(self).__name__}")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("float", "int") or (field.type == "float | None" and value is not None):
                require_positive(field.name, value)
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name} must be True or False, got {value!r}")

    def inverse_frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        """Return the inverse frequencies, [head_dim / 2] in fp32, in radians a position."""
        return 1.0 / self.rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)

    def cos_sin_factor(self) -> float:
        """Return the factor of cos and sin."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearRope(Rope):
    """RoPE with positions divided by a factor (Chen et al., "Position Interpolation", 2023)."""

    rope_type: str = "linear"
    factor: float

    def inverse_frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        return Rope.inverse_frequencies(self, head_dim, device) / self.factor


def _blend(frequencies: Tensor, kept: Tensor, factor: float) -> Tensor:
    """Keep the frequencies where `kept` is 1 or more; divide them by the factor where it is 0 or less; mix between."""
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequencies / factor + kept * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Rope(Rope):
    """Llama 3.1's RoPE: short wavelengths stay, long ones are stretched by `factor`, those between are blended.

    "The Llama 3 Herd of Models", 2024; the formula is that of Meta's reference code (apply_scaling).
    """

    rope_type: str = "llama3"
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def inverse_frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        short = Rope.inverse_frequencies(self, head_dim, device)
        turns = self.original_max_position_embeddings / (2 * pi / short)  # over the original length
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return _blend(short, kept, self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnRope(Rope):
    """YaRN (Peng et al., 2023): blends like Llama3Rope, but by dimension; larger cos and sin sharpen attention.

    beta_fast, beta_slow: pairs with more turns over the original length stay, with fewer are stretched. mscale and
    mscale_all_dim, DeepSeek's addition, replace the paper's factor on cos and sin; attention_factor states it outright.
    """

    rope_type: str = "yarn"
    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        Rope.__post_init__(self)
        if self.rope_theta == 1:
            raise ValueError(f"rope_theta={self.rope_theta!r}: YaRN blends by frequency, and then all are the same")

    def inverse_frequencies(self, head_dim: int, device: torch.device) -> Tensor:
        short = Rope.inverse_frequencies(self, head_dim, device)
        first, last = self._pair_with(self.beta_fast, head_dim), self._pair_with(self.beta_slow, head_dim)
        if self.truncate:
            first, last = floor(first), ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        width = last - first or 0.001
        pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=device)
        return _blend(short, 1 - (pairs - first) / width, self.factor)

    def _pair_with(self, turns: float, head_dim: int) -> float:
        """Return the pair, a fraction, that makes so many turns over the original length."""
        length = self.original_max_position_embeddings
        return head_dim * log(length / (turns * 2 * pi)) / (2 * log(self.rope_theta))

    def cos_sin_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._scale(self.mscale) / self._scale(self.mscale_all_dim)
        return self._scale(1.0)

    def _scale(self, mscale: float) -> float:
        return 0.1 * mscale * log(self.factor) + 1.0 if self.factor > 1 else 1.0


ROPE_TYPES: dict[str, type[Rope]] = {"default": Rope, "linear": LinearRope, "llama3": Llama3Rope, "yarn": YarnRope}


def rope_from_hf(hf: dict[str, Any]) -> Rope:
    """Return the Rope of a parsed config.json: its `rope_parameters`, or the older `rope_theta` and `rope_scaling`.

    Raises ValueError for a type that is not in ROPE_TYPES, an unknown or a missing parameter, or one out of range.
    """
    given = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise ValueError(f"config.json: rope_scaling or rope_parameters must be an object, got {given!r}")
    settings: dict[str, Any] = {"rope_theta": hf.get("rope_theta")} | given
    settings["rope_type"] = settings.get("rope_type") or settings.get("type") or "default"
    settings.pop("type", None)
    settings = {key: value for key, value in settings.items() if value is not None}
    if settings.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor={given['partial_rotary_factor']!r} is not supported, only 1.0")
    rope_class = ROPE_TYPES.get(str(settings["rope_type"]))
    if rope_class is None:
        raise ValueError(f"rope_type={settings['rope_type']!r} is not supported, only {', '.join(ROPE_TYPES)}")
    known = {field.name for field in fields(rope_class)}
    required = {field.name for field in fields(rope_class) if field.default is MISSING}
    if "original_max_position_embeddings" in known:
        within = settings.get("original_max_position_embeddings")
        outside = hf.get("original_max_position_embeddings")  # goes first, as in transformers
        settings["original_max_position_embeddings"] = outside or within or hf["max_position_embeddings"]
    if settings.keys() - known or required - settings.keys():
        raise ValueError(
            f"rope of type {settings['rope_type']!r} has the parameters {sorted(settings)}, "
            f"required: {sorted(required)}, allowed: {sorted(known)}"
        )
    return rope_class(**settings)


class Rotation:
    """Holds cos and sin for every position below `length`.

    The table is made on first use, for the device and dtype of that call, and again when those change: it is no buffer,
    so that a model may be built without memory and cast without loss. It is computed in fp32, then rounded to the
    dtype.
    """

    def __init__(self, rope: Rope, head_dim: int, length: int) -> None:
        self.rope, self.head_dim, self.length = rope, head_dim, length
        self.table: Tensor | None = None

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cos [N, 1, 1, D / 2] and (-sin, sin) [N, 1, 2, D / 2] of positions [N], for `rotate`."""
        rows = F.embedding(positions, self.table_for(positions.device, dtype)).view(-1, 1, 3, self.head_dim // 2)
        return rows[:, :, :1], rows[:, :, 1:]

    def table_for(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the table [length, 3 D / 2]: cos, -sin and sin of each position."""
        if self.table is None or self.table.device != device or self.table.dtype != dtype:
            self.table = self._make_table(device, dtype)
        return self.table

    @property
    def num_values(self) -> int:
        """Number of values in the table."""
        return self.length * 3 * (self.head_dim // 2)

    def _make_table(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        positions = torch.arange(self.length, dtype=torch.float32, device=device)
        angles = positions[:, None] * self.rope.inverse_frequencies(self.head_dim, device)
        cos, sin = angles.cos(), angles.sin()
        return (torch.cat([cos, -sin, sin], dim=1) * self.rope.cos_sin_factor()).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x [N, H, D]; the partner of number i of a head is number i + D / 2, as in the HF checkpoints."""
    halves = x.unflatten(-1, (2, -1))
    return (halves * cos + halves.flip(-2) * sin).flatten(-2)
