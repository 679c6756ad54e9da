"""Models: one forward signature (see model.py), and loading of weights in HF format."""

from roseinfer.kernels import triton_mode  # noqa: F401  # sets Triton up before transformers imports it

from .checkpoint import NoSuchModel
from .config import ModelConfig
from .gpt2 import GPT2
from .hf import to_hf
from .llama import Llama
from .load import (
    ModelLoadError,
    checkpoint_dtype,
    generation_config,
    load_model,
    model_config,
    shape_of,
)
from .model import Attend, Layer, Model
from .rope import Rope
from .shapes import empty_model, random_model
from .tokenizer import ModelTokenizer, has_tokenizer, load_tokenizer, model_tokenizer

__all__ = [
    "GPT2",
    "Attend",
    "Layer",
    "Llama",
    "Model",
    "ModelConfig",
    "ModelLoadError",
    "ModelTokenizer",
    "NoSuchModel",
    "Rope",
    "checkpoint_dtype",
    "empty_model",
    "generation_config",
    "has_tokenizer",
    "load_model",
    "load_tokenizer",
    "model_config",
    "model_tokenizer",
    "random_model",
    "shape_of",
    "to_hf",
]
