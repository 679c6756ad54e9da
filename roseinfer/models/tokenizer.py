"""load_tokenizer: transformers' reading of tokenizer.json and tokenizer_config.json, without Python of the folder."""

from __future__ import annotations

import warnings
from itertools import zip_longest
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from .checkpoint import ModelLoadError
from .load import tokenizer_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts that different rules cut into different tokens.
PROBES = (
    "It's a new day, isn't it? WE'LL see.",
    "def f(x):\n    return x\n\n",
    "12345 + 0.5 = a1b2",
    " a  space before, and\ttabs\r\n",
    "cafe\u0301 Ａ 你好,世界 😀",
)


def load_tokenizer(spec: str) -> Tokenizer:
    """Return the tokenizer of a model: `.encode(text).ids` and `.decode(ids)`. Raises ModelLoadError.

    Args:
        spec: of the model, as load_model takes it, or of a tokenizer alone.

    It gives the token ids of transformers' AutoTokenizer, and warns where they are not tokenizer.json's own. It neither
    cuts nor pads a text, whatever the folder's tokenizer.json says: that state belongs to the batches of the program
    that saved the file.
    """
    return tokenizer_and_end(spec)[0]


def tokenizer_and_end(spec: str) -> tuple[Tokenizer, int | None]:
    """Return the tokenizer of `spec` and its end token, None if it names none. Raises ModelLoadError."""
    pretrained = pretrained_tokenizer(spec)
    tokenizer = pretrained.backend_tokenizer
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _warn_of_other_tokens(tokenizer, type(pretrained).__name__, spec)
    return tokenizer, pretrained.eos_token_id


def _warn_of_other_tokens(tokenizer: Tokenizer, class_name: str, spec: str) -> None:
    """Warn where transformers' class takes the vocabulary from tokenizer.json, but cuts texts by rules of its own."""
    if class_name == "TokenizersBackend":
        return  # it takes all of tokenizer.json
    own = Tokenizer.from_file(str(tokenizer_folder(spec) / "tokenizer.json"))
    own.no_truncation()
    own.no_padding()
    special = [token.content for token in own.get_added_tokens_decoder().values() if token.special]
    # Classes differ in the space that they put after a special token: a conversation has one before each message.
    after_special = [f"{token}It's a new day" for token in special[-1:]]
    for text in (*after_special, *PROBES):
        theirs, wanted = (each.encode(text, add_special_tokens=False) for each in (tokenizer, own))
        if theirs.ids != wanted.ids:
            at = next(i for i, (a, b) in enumerate(zip_longest(theirs.ids, wanted.ids)) if a != b)
            begin = max(at - 1, 0)
            warnings.warn(
                f"{spec}: transformers' {class_name} cuts texts by its own rules, not by those of tokenizer.json: in "
                f"{text!r} it finds {theirs.tokens[begin : at + 2]}, and the file {wanted.tokens[begin : at + 2]}. A "
                "model that was trained with the file may answer worse. To use the file's rules, copy the tokenizer's "
                'files into a folder without config.json, set "tokenizer_class": "TokenizersBackend" in its '
                "tokenizer_config.json, and give that folder as tokenizer",
                stacklevel=4,
            )
            return


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
