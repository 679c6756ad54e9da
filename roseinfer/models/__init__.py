"""Models: one forward signature (see gpt2.py), and loading of weights in HF format."""

from .config import ModelConfig
from .gpt2 import GPT2, Attend
from .hf import to_hf
from .load import ModelLoadError, load_model, load_tokenizer, random_model, shape_of

__all__ = [
    "GPT2", "Attend", "ModelConfig", "ModelLoadError",
    "load_model", "load_tokenizer", "random_model", "shape_of", "to_hf",
]  # fmt: skip
