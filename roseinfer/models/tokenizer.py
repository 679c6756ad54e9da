"""The tokenizer of a model: a GGUF file's own, or transformers' reading of a folder, without Python of that folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer

from . import gguf_tokenizer
from .checkpoint import ModelLoadError
from .gguf_file import GgufFile
from .load import tokenizer_checkpoint


class ModelTokenizer(NamedTuple):
    """A tokenizer, and what the files of its model say beside it.

    end_token: the id that ends a text, None if they name none. special_tokens: by name, such as {"bos_token": "<s>"}.
    chat_templates: by name, of which the usual one is "default"; {} for none. template_place: where one would stand.
    """

    tokenizer: Tokenizer
    end_token: int | None
    special_tokens: dict[str, str]
    chat_templates: dict[str, str]
    template_place: str


def load_tokenizer(spec: str) -> Tokenizer:
    """Return the tokenizer of a model: `.encode(text).ids` and `.decode(ids)`. Raises ModelLoadError.

    Args:
        spec: of the model, as load_model takes it, or of a tokenizer alone.

    It gives the token ids of transformers' AutoTokenizer, and of llama.cpp for a GGUF file. It neither cuts nor pads a
    text, whatever the folder's tokenizer.json says: that state belongs to the batches of the program that saved it.
    """
    return model_tokenizer(spec).tokenizer


def has_tokenizer(spec: str) -> bool:
    """Whether a spec's model has a tokenizer; it is not read. Raises ModelLoadError for a model that is not found."""
    if spec.startswith("random:"):
        return False
    checkpoint = tokenizer_checkpoint(spec)
    if checkpoint.gguf:
        return f"{gguf_tokenizer.KEY}.model" in checkpoint.gguf.metadata
    return (checkpoint.folder / "tokenizer.json").is_file()


def model_tokenizer(spec: str) -> ModelTokenizer:
    """Return the tokenizer of `spec`, with its end token and its chat templates. Raises ModelLoadError."""
    checkpoint = tokenizer_checkpoint(spec)
    return _of_gguf(checkpoint.gguf) if checkpoint.gguf else _of_folder(checkpoint.folder)


def _of_gguf(file: GgufFile) -> ModelTokenizer:
    try:
        return ModelTokenizer(
            gguf_tokenizer.tokenizer_of(file),
            gguf_tokenizer.end_token(file),
            gguf_tokenizer.special_tokens(file),
            gguf_tokenizer.chat_templates(file),
            f"{gguf_tokenizer.TEMPLATE} in its metadata",
        )
    except ValueError as e:
        raise ModelLoadError(f"{file.path}: {e}") from e


def _of_folder(folder: Path) -> ModelTokenizer:
    """Read a folder as transformers does. No Python of the folder runs: a tokenizer that needs it is refused."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelLoadError(f"{path} does not exist")
    from transformers import AutoTokenizer

    try:
        read = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as e:  # transformers has no type of its own for what a file there may make it raise
        reason = " ".join(str(e).split())
        if "trust_remote_code" in reason:
            raise ModelLoadError(f"{folder}: its tokenizer is Python code in that folder, which is never run") from e
        raise ModelLoadError(f"{path} is not a tokenizer: {reason}") from e
    if not read.is_fast:
        kind = type(read).__name__
        raise ModelLoadError(f"{folder}: tokenizer_class {kind} does not use tokenizer.json, and is not supported")
    tokenizer = read.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    templates = read.chat_template or {}
    return ModelTokenizer(
        tokenizer,
        read.eos_token_id,
        {name: str(token) for name, token in read.special_tokens_map.items()},
        templates if isinstance(templates, dict) else {"default": templates},
        "chat_template.jinja, or 'chat_template' in tokenizer_config.json",
    )
