"""The shape of a model: everything that a stage, a floor or a test needs to know without the weights."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes of a decoder-only transformer.

    num_heads query heads share num_kv_heads key/value heads (grouped-query attention when smaller), each head_dim
    wide. max_model_len is the number of positions the model has. eos_token_id is None where the model has none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_model_len: int
    norm_eps: float = 1e-5
    eos_token_id: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{field.name} must be a positive integer, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}: "
                "each key/value head serves an equal group of query heads"
            )
        if not self.norm_eps > 0:
            raise ValueError(f"norm_eps must be above 0, got {self.norm_eps!r}")
