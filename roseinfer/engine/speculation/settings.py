"""SpeculativeConfig: how an engine drafts, and the checks of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from roseinfer.arguments import require_count, require_known, unknown_name

if TYPE_CHECKING:
    from roseinfer.models import Model, ModelConfig

NGRAM, DRAFT_MODEL = "ngram", "draft_model"
METHODS = NGRAM, DRAFT_MODEL
OWN_KEYS = {NGRAM: ("prompt_lookup_max", "prompt_lookup_min"), DRAFT_MODEL: ("model", "quantization")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """Settings of speculative decoding, named as in vLLM.

    method: "ngram" looks the last tokens up in the text before them, "draft_model" asks a smaller model. num_tokens:
    the length of a draft, at most. prompt_lookup_max, prompt_lookup_min (ngram): how many of the last tokens are looked
    up, first the most. model (draft_model): a spec as load_model takes it, or a Model; it has the vocabulary of the
    model that it drafts for. quantization (draft_model): "int8" for its matrices in 8 bits, on a CPU.

    Raises ValueError for a wrong value, and for one that the method does not take.
    """

    method: str
    num_tokens: int = 4
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    model: str | Model | None = None
    quantization: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.method, str):
            raise ValueError(f"speculative['method'] must be one of {', '.join(METHODS)}, got {self.method!r}")
        require_known("speculative['method']", self.method, METHODS)
        require_count("speculative['num_tokens']", self.num_tokens, at_least=1)
        for method, keys in OWN_KEYS.items():
            for key in keys if method != self.method else ():
                if (value := getattr(self, key)) is not None:
                    raise ValueError(f"speculative[{key!r}]={value!r} is for method={method!r}, got {self.method!r}")
        if self.method == NGRAM:
            longest, shortest = self.lookup_sizes
            require_count("speculative['prompt_lookup_min']", shortest, at_least=1)
            require_count("speculative['prompt_lookup_max']", longest, at_least=shortest)
        elif self.model is None or self.model == "":
            raise ValueError("speculative needs a 'model' for method='draft_model': a spec such as 'tiny', or a Model")

    @property
    def lookup_sizes(self) -> tuple[int, int]:
        """prompt_lookup_max and prompt_lookup_min, or what None stands for: 4 and 2, as far as the other one allows."""
        longest, shortest = self.prompt_lookup_max, self.prompt_lookup_min
        if longest is None:
            longest = 4 if shortest is None else max(4, shortest)
        return longest, min(2, longest) if shortest is None else shortest

    def check_sizes(self, step_tokens: int, max_model_len: int | None) -> None:
        """Raise ValueError for more tokens than a step or a sequence can have."""
        for name, most in (("a step of max_num_batched_tokens", step_tokens), ("max_model_len", max_model_len)):
            if most is not None and self.num_tokens >= most:
                raise ValueError(
                    f"speculative['num_tokens']={self.num_tokens} drafts and the token before them are more than {name}"
                    f"={most} allows: at most {most - 1}"
                )

    def check_model(self, draft: ModelConfig, target: ModelConfig, longest: int) -> None:
        """Raise ValueError for a draft model with another vocabulary, or with too few positions.

        longest: tokens of the longest sequence.
        """
        if draft.vocab_size != target.vocab_size:
            raise ValueError(
                f"speculative['model'] has a vocabulary of {draft.vocab_size:,} tokens, allowed: the "
                f"{target.vocab_size:,} of the model that it drafts for"
            )
        if draft.max_model_len < longest:
            raise ValueError(
                f"speculative['model'] has {draft.max_model_len:,} positions, allowed: at least max_model_len="
                f"{longest:,}"
            )


def speculative_config(value: object) -> SpeculativeConfig | None:
    """Return the SpeculativeConfig that LLM(speculative=...) stands for, None for None.

    Raises ValueError for anything but a dict of SpeculativeConfig's fields, a SpeculativeConfig or None.
    """
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(
            f"speculative must be a dict such as {{'method': 'ngram', 'num_tokens': 4}}, got {value!r:.100}"
        )
    names = [own.name for own in fields(SpeculativeConfig)]
    for name in value:
        if name not in names:
            raise ValueError(f"speculative has no key {unknown_name(str(name), names)}")
    if "method" not in value:
        raise ValueError(f"speculative needs a 'method', one of {', '.join(METHODS)}, got {dict(value)!r:.100}")
    return SpeculativeConfig(**value)
