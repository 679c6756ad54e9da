"""The model and the tokenizer that LLM serves, from what it was given."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer

from roseinfer.models import Model, load_model, load_tokenizer, tokenizer_folder

from .config import check_device, check_dtype, check_quantization
from .weights import prepare_weights


def model_to_serve(model: str | Model, dtype: str | None, device: str | None, quantization: str | None) -> Model:
    """A Model as it is, or the one that a spec names, its matrices in the layout for this machine.

    None is float32, a GPU where there is one and else the CPU, and no quantisation. Raises ValueError for a wrong
    value, and for any beside a Model.
    """
    if isinstance(model, Model):
        for name, value in {"dtype": dtype, "device": device, "quantization": quantization}.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is for a spec: a Model has its own")
        return model
    if not isinstance(model, str) or not model:
        raise ValueError(f"model must be a Model or a spec such as 'tiny' or 'random:gpt2', got {model!r:.100}")
    dtype = "float32" if dtype is None else dtype
    check_dtype(dtype)
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    check_device(device)
    check_quantization(quantization, device)
    loaded = load_model(model, device=device, dtype=getattr(torch, dtype))
    prepare_weights(loaded, quantization)
    return loaded


def tokenizer_to_serve(spec: str | None, tokenizer: str | Tokenizer | None) -> Tokenizer | None:
    """What was asked for, else the own one of a model's spec, else None.

    Raises ModelLoadError, and ValueError for a Tokenizer that cuts or pads texts: prompts are neither cut nor padded.
    """
    if isinstance(tokenizer, Tokenizer):
        for state, off in (("truncation", "no_truncation"), ("padding", "no_padding")):
            if value := getattr(tokenizer, state):
                raise ValueError(f"tokenizer.{state} must be None, got {value}: call tokenizer.{off}() first")
        return tokenizer
    if tokenizer is not None:
        return load_tokenizer(tokenizer)
    has_one = spec and not spec.startswith("random:") and (tokenizer_folder(spec) / "tokenizer.json").is_file()
    return load_tokenizer(spec) if has_one else None
