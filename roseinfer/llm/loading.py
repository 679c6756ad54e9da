"""The model and the tokenizer that LLM serves, made from its arguments, and its default sampling params."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from tokenizers import Tokenizer

from roseinfer.engine.config import AUTO, check_device, check_dtype
from roseinfer.engine.speculation.settings import SpeculativeConfig
from roseinfer.models import (
    Model,
    ModelConfig,
    ModelLoadError,
    ModelTokenizer,
    checkpoint_dtype,
    generation_config,
    has_tokenizer,
    load_model,
    model_tokenizer,
)
from roseinfer.models.gguf_model import load_as_stored, stored_gguf
from roseinfer.models.weights import check_quantization, prepare_weights
from roseinfer.sampling_params import SamplingParams

# Settings of generation_config.json that change a text and that the engine does not have: key -> value without effect.
NOT_APPLIED = {
    "no_repeat_ngram_size": 0,
    "top_h": 0,
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "num_beams": 1,
    "penalty_alpha": 0,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_return_sequences": 1,
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": {},
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "stop_strings": [],
    "exponential_decay_length_penalty": None,
    "watermarking_config": None,
    "dola_layers": None,
}


NO_FILES = "only a folder of a model or tokenizer, or a GGUF file, has one"

# What vLLM's LLM has beyond this one's arguments, and what to use instead.
NOT_TAKEN = {
    "pipeline_parallel_size": "a model is split inside its layers: use tensor_parallel_size",
    "data_parallel_size": "an LLM is one replica: `roseinfer serve MODEL --replicas N` starts several",
    "trust_remote_code": "Python code of a model's folder is never run",
    "revision": "download that revision, and give its folder",
    "tokenizer_revision": "download that revision, and give its folder",
    "code_revision": "Python code of a model's folder is never run",
    "tokenizer_mode": "tokenizer.json is read, as its fast tokenizer does",
    "skip_tokenizer_init": "a Model in place of a spec has no tokenizer, unless tokenizer names one",
    "load_format": "weights are read from safetensors, or random with the spec random:...",
    "download_dir": "set HF_HOME",
    "kv_cache_dtype": "the KV cache has the dtype of the weights",
    "swap_space": "a preempted request is computed again, and not swapped",
    "cpu_offload_gb": "weights stay on their device",
    "enable_lora": "the engine has no adapters",
    "enable_chunked_prefill": "it is always on: max_num_batched_tokens is the size of a chunk",
    "disable_log_stats": "nothing is logged: outputs have metrics",
    "speculative_config": "use speculative, such as {'method': 'ngram', 'num_tokens': 4}",
    "compilation_config": "the engine decides: see enforce_eager",
    "hf_overrides": "change config.json in a copy of the folder",
    "hf_token": "set HF_TOKEN",
    "limit_mm_per_prompt": "models here read text alone",
    "max_logprobs": "logprobs are at most 20 a position",
    "logits_processors": "SamplingParams(logits_processors=...) takes them for each request",
    "runner": "the engine generates, and does not embed",
    "task": "the engine generates, and does not embed",
    "override_generation_config": "give SamplingParams with each request",
    "generation_config": "give SamplingParams with each request",
}


def model_to_serve(
    model: str | Model, dtype: str | None, device: str | None, quantization: str | None, prepared: bool = True
) -> Model:
    """Return a Model as it is, or load the one that a spec names.

    prepared: put its matrices in the layout for this machine. dtype: None for float32, "auto" for the checkpoint's. On
    a CPU, a GGUF file for which neither dtype nor quantization is given keeps its matrices as they are stored.
    device: None for a GPU where there is one and else the CPU. quantization: None for none. Raises ValueError for a
    wrong value, and for any of them with a Model.
    """
    if isinstance(model, Model):
        for name, value in {"dtype": dtype, "device": device, "quantization": quantization}.items():
            if value is not None:
                raise ValueError(f"{name}={value!r} is for a spec: a Model has its own")
        return model
    if not isinstance(model, str) or not model:
        raise ValueError(f"model must be a Model or a spec such as 'tiny' or 'random:gpt2', got {model!r:.100}")
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    check_device(device)
    if prepared and (gguf := stored_gguf(model, dtype, quantization, device)):
        return load_as_stored(gguf)
    dtype = "float32" if dtype is None else dtype
    check_dtype(dtype, AUTO)
    if dtype == AUTO:
        dtype = checkpoint_dtype(model)
    check_quantization(quantization, device)
    loaded = load_model(model, device=device, dtype=getattr(torch, dtype))
    if prepared:
        prepare_weights(loaded, quantization)
    return loaded


def draft_to_serve(config: SpeculativeConfig | None, target: Model, tokenizer: Tokenizer | None) -> Model | None:
    """Return the model that drafts for the target, on its device and in its dtype; None where no model does.

    tokenizer: the target's. Raises ValueError for a wrong value, for a quantization with a Model, and for a spec with
    other tokens.
    """
    if config is None or config.model is None:
        return None
    if not isinstance(config.model, str):
        return model_to_serve(config.model, None, None, config.quantization)
    own = tokenizer_to_serve(config.model, None) if tokenizer else None
    if own and tokenizer and own.tokenizer.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"speculative['model']={config.model!r} has another vocabulary than the model that it drafts for: the "
            "tokens of their tokenizers differ"
        )
    dtype = str(target.dtype).removeprefix("torch.")
    return model_to_serve(config.model, dtype, str(target.device), config.quantization)


def tokenizer_to_serve(spec: str | None, tokenizer: str | Tokenizer | ModelTokenizer | None) -> ModelTokenizer | None:
    """Return the tokenizer that was asked for, else the one of the model's spec, else None.

    Raises ModelLoadError, which names the argument, and ValueError for a Tokenizer that cuts or pads texts: prompts are
    neither cut nor padded.
    """
    if isinstance(tokenizer, Tokenizer):
        for state, off in (("truncation", "no_truncation"), ("padding", "no_padding")):
            if value := getattr(tokenizer, state):
                raise ValueError(f"tokenizer.{state} must be None, got {value}: call tokenizer.{off}() first")
        return ModelTokenizer(tokenizer, None, {}, {}, NO_FILES)
    if isinstance(tokenizer, ModelTokenizer):
        return tokenizer
    if tokenizer is not None:
        try:
            return model_tokenizer(tokenizer)
        except ModelLoadError as error:
            raise ModelLoadError(f"tokenizer={tokenizer!r}: {error}") from error
    return model_tokenizer(spec) if spec and has_tokenizer(spec) else None


def with_end_token(config: ModelConfig, token_id: int | None) -> ModelConfig:
    """Return the config with the tokenizer's end token among the model's, as in vLLM.

    transformers ends texts only at the tokens of generation_config.json or config.json.
    """
    if token_id is None or token_id >= config.vocab_size or token_id in config.eos_token_ids:
        return config
    return replace(config, eos_token_id=(*config.eos_token_ids, token_id))


def default_params(spec: str | None) -> SamplingParams:
    """Return the params of requests that bring none: those of the model's generation_config.json, as in vLLM.

    do_sample=false is greedy, and so is a file without do_sample and temperature. Warns of settings there that the
    engine does not have. Raises ModelLoadError for a value out of range.
    """
    found = {key: value for key, value in (generation_config(spec) if spec else {}).items() if value is not None}
    where = f"{spec}: generation_config.json"
    for key in found.keys() & NOT_APPLIED.keys():
        if found[key] != NOT_APPLIED[key]:
            warnings.warn(f"{where}: {key}={found[key]!r} is not applied, the engine does not have it", stacklevel=3)
    chosen = {"max_tokens": found.get("max_new_tokens"), "repetition_penalty": found.get("repetition_penalty")}
    if found.get("do_sample") is not False:
        temperature = found.get("temperature", 1.0 if found.get("do_sample") else None)
        chosen |= {"temperature": temperature} | {name: found.get(name) for name in ("top_k", "top_p", "min_p")}
    try:
        return SamplingParams(**{name: value for name, value in chosen.items() if value is not None})
    except ValueError as e:
        raise ModelLoadError(f"{where}: {e}") from e
