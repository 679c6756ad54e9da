"""Checkpoints that are quantised already, which are refused by the name of their method.

The names are those that transformers, AutoGPTQ, AutoAWQ, bitsandbytes and compressed-tensors write.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

METHODS = {"gptq": "GPTQ", "awq": "AWQ", "bitsandbytes": "bitsandbytes", "fp8": "fp8", "fbgemm_fp8": "fp8"}
# The end of a tensor's name, and the methods that store such a tensor beside or instead of a weight. The first that a
# checkpoint has decides: GPTQ's and AWQ's tensors differ by one.
STORED_BY = {
    ".g_idx": "GPTQ",
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".scales": "GPTQ or AWQ",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "fp8",
    ".weight_scale_inv": "fp8",
}
INSTEAD = "is not supported: load the model that it was made from, with quantization='int8' or 'int4'"


def refuse_quantized_config(hf: dict[str, Any]) -> None:
    """Raise ValueError for a config.json that says how its weights are quantised."""
    given = hf.get("quantization_config")
    if given is None:
        return
    method = given.get("quant_method") if isinstance(given, dict) else None
    if not isinstance(method, str):
        raise ValueError(f"config.json: quantization_config={given!r:.80}: a checkpoint that is quantised {INSTEAD}")
    name = METHODS.get(method, method)
    raise ValueError(f"config.json: quantization_config: a checkpoint that is quantised by {name} {INSTEAD}")


def refuse_quantized_names(names: Iterable[str]) -> None:
    """Raise ValueError for names of tensors that only a quantised checkpoint has."""
    by_ending = {ending: name for name in names for ending in STORED_BY if name.endswith(ending)}
    for ending, method in STORED_BY.items():
        if ending in by_ending:
            raise ValueError(f"weight {by_ending[ending]}: a checkpoint that is quantised by {method} {INSTEAD}")
