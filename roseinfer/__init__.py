"""roseinfer: a course on LLM inference engines, and the engine that the course builds.

The names below are imported on first use, so that `roseinfer doctor` and `--help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .kernels import triton_mode as triton_mode
    from .llm.llm import LLM as LLM
    from .llm.outputs import CompletionOutput as CompletionOutput
    from .llm.outputs import RequestOutput as RequestOutput
    from .models import load_model as load_model
    from .models import load_tokenizer as load_tokenizer
    from .sampling_params import SamplingParams as SamplingParams
    from .sequence import Logprob as Logprob
    from .sequence import Sequence as Sequence
    from .structured_outputs import StructuredOutputsParams as StructuredOutputsParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "Sequence",
    "StructuredOutputsParams",
    "load_model",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        return import_module(".llm.llm", __name__).LLM
    if name in ("CompletionOutput", "RequestOutput"):
        return getattr(import_module(".llm.outputs", __name__), name)
    if name in ("load_model", "load_tokenizer"):
        return getattr(import_module(".models", __name__), name)
    if name == "SamplingParams":
        return import_module(".sampling_params", __name__).SamplingParams
    if name == "StructuredOutputsParams":
        return import_module(".structured_outputs", __name__).StructuredOutputsParams
    if name in ("Logprob", "Sequence"):
        return getattr(import_module(".sequence", __name__), name)
    if name == "triton_mode":  # the path by which stage 07, which is frozen, imports it
        return import_module(".kernels.triton_mode", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}, it has {', '.join(__all__)}")
