"""The shape of a model: everything that a stage, a floor or a test needs to know without the weights."""

from __future__ import annotations

from dataclasses import dataclass, fields

from roseinfer.arguments import is_integer, require_positive

from .rope import Rope

LARGEST_SIZE = 2**31 - 1  # of one dimension; a product of two fits what torch counts with
MOST_LAYERS = 1000  # each is a module, on the meta device too
LAYERS = ("num_layers", "n_layer", "num_hidden_layers")  # here, and in config.json


def require_size(name: str, value: object) -> None:
    """Raise ValueError unless the value is the size of a dimension, or the number of layers."""
    most = MOST_LAYERS if name.rpartition(" ")[2] in LAYERS else LARGEST_SIZE
    if not is_integer(value) or not 1 <= value <= most:
        limit = f" of at most {most:,}" if is_integer(value) and value > most else ""
        raise ValueError(f"{name} must be a positive integer{limit}, got {value!r}")


@dataclass(frozen=True, slots=True, repr=False)
class ModelConfig:
    """Sizes of a decoder-only transformer.

    num_heads query heads share num_kv_heads key/value heads (grouped-query attention when smaller), each head_dim
    wide. max_model_len is the number of positions the model has. eos_token_id is None where the model has none, and a
    tuple where several tokens end a text.

    tie_embeddings: the output matrix is the token embedding. The fields after it are settings of the Llama family;
    GPT-2 has every bias and learns its positions. qkv_bias, o_bias: biases of the attention's projections. qk_norm: an
    RMSNorm over each head of q and k. rope: how positions turn q and k.
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
    eos_token_id: int | tuple[int, ...] | None = None
    tie_embeddings: bool = True
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    rope: Rope | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                require_size(field.name, value)
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name} must be True or False, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}: "
                "each key/value head serves an equal group of query heads"
            )
        require_positive("norm_eps", self.norm_eps)
        if not all(is_integer(token) and token >= 0 for token in self.eos_token_ids):
            raise ValueError(f"eos_token_id must be a token id, a tuple of them or None, got {self.eos_token_id!r}")
        if self.rope is not None and self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: RoPE turns pairs of numbers")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a text; none, one or several."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    def __repr__(self) -> str:
        """Return a dataclass's repr, without the Llama family's fields where they have their defaults."""
        optional = ("tie_embeddings", "qkv_bias", "o_bias", "qk_norm", "rope")
        shown = [f for f in fields(self) if f.name not in optional or getattr(self, f.name) != f.default]
        return f"ModelConfig({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in shown)})"
