"""CTranslate2 behind serve.py: the weights as its own spec, greedy generation of exactly max_tokens."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import transformer_spec
from ctranslate2.specs.common_spec import Activation
from serve import Tokens, read_model, serve


class CTranslate2:
    def __init__(self, folder: Path, precision: str, threads: int) -> None:
        supported = ctranslate2.get_supported_compute_types("cpu")
        if precision not in supported:
            raise ValueError(f"CTranslate2 has no {precision} on this CPU, only {', '.join(sorted(supported))}")
        self.versions = {"ctranslate2": ctranslate2.__version__}
        with tempfile.TemporaryDirectory() as converted:
            write(folder, Path(converted))
            self.generator = ctranslate2.Generator(
                converted, device="cpu", compute_type=precision, inter_threads=1, intra_threads=threads
            )

    def prepare(self, prompts: Tokens, max_tokens: int) -> None:
        pass  # it allocates as it goes, and keeps what it has

    def generate(self, prompts: Tokens, max_tokens: int) -> Tokens:
        if len(set(map(len, prompts))) > 1:  # it would count what longer prompts have more as generated
            raise ValueError("CTranslate2 is given prompts of one length alone")
        results = self.generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            max_length=max_tokens,
            min_length=max_tokens,
            end_token=[],
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]


def write(folder: Path, converted: Path) -> None:
    """Write GPT-2 in fp32 in the layout of CTranslate2's own converter; CTranslate2 quantises it when it loads it."""
    shape, weights = read_model(folder)
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        shape["num_layers"], shape["num_heads"], pre_norm=True, activation=Activation.GELUTanh
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights["wte.weight"]
    decoder.position_encodings.encodings = weights["wpe.weight"]
    decoder.projection.weight = weights["wte.weight"]
    norm(decoder.layer_norm, weights, "ln_f")
    for i, layer in enumerate(decoder.layer):
        norm(layer.self_attention.layer_norm, weights, f"h.{i}.ln_1")
        linear(layer.self_attention.linear[0], weights, f"h.{i}.attn.c_attn")
        linear(layer.self_attention.linear[1], weights, f"h.{i}.attn.c_proj")
        norm(layer.ffn.layer_norm, weights, f"h.{i}.ln_2")
        linear(layer.ffn.linear_0, weights, f"h.{i}.mlp.c_fc")
        linear(layer.ffn.linear_1, weights, f"h.{i}.mlp.c_proj")
    spec.config.layer_norm_epsilon = shape["norm_eps"]
    spec.register_vocabulary([str(token) for token in range(shape["vocab_size"])])
    spec.validate()
    spec.save(str(converted))


def linear(spec: Any, weights: dict[str, np.ndarray], name: str) -> None:
    spec.weight, spec.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]


def norm(spec: Any, weights: dict[str, np.ndarray], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


if __name__ == "__main__":
    serve(CTranslate2)
