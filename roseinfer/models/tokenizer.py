"""load_tokenizer: transformers' reading of tokenizer.json and tokenizer_config.json, without Python of the folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from .checkpoint import ModelLoadError
from .load import tokenizer_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(spec: str) -> Tokenizer:
    """Return the tokenizer of a model: `.encode(text).ids` and `.decode(ids)`. Raises ModelLoadError.

    Args:
        spec: of the model, as load_model takes it, or of a tokenizer alone.

    It gives the token ids of transformers' AutoTokenizer. It neither cuts nor pads a text, whatever the folder's
    tokenizer.json says: that state belongs to the batches of the program that saved the file.
    """
    return tokenizer_and_end(spec)[0]


def tokenizer_and_end(spec: str) -> tuple[Tokenizer, int | None]:
    """Return the tokenizer of `spec` and its end token, None if it names none. Raises ModelLoadError."""
    pretrained = pretrained_tokenizer(spec)
    tokenizer = pretrained.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, pretrained.eos_token_id


def pretrained_tokenizer(spec: str) -> PreTrainedTokenizerBase:
    """Return transformers' own tokenizer of `spec`, which has its chat template too. Raises ModelLoadError.

    No Python of the folder runs: a tokenizer that needs it is refused.
    """
    from transformers import AutoTokenizer

    folder = tokenizer_folder(spec)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # transformers has no type of its own for what a file there may make it raise
        reason = " ".join(str(e).split())
        if "trust_remote_code" in reason:
            raise ModelLoadError(f"{folder}: its tokenizer is Python code in that folder, which is never run") from e
        raise ModelLoadError(f"{path} is not a tokenizer: {reason}") from e
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise ModelLoadError(f"{folder}: tokenizer_class {kind} does not use tokenizer.json, and is not supported")
    return tokenizer
