"""encode: the one place where a text of a request becomes tokens."""

from __future__ import annotations

from tokenizers import Tokenizer


def encode(text: str, tokenizer: Tokenizer, what: str, add_special_tokens: bool = False) -> list[int]:
    """Return the token ids of a text; other threads run meanwhile. what: names the text in an error.

    Raises ValueError for half of a surrogate, and for a text of which the tokenizer makes no token.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} must be Unicode text, character {error.start} is half of a surrogate") from error
    # Tokenizer.encode holds the GIL, for seconds with a long text. Its batch form releases it, and the fast variant
    # leaves out offsets, which nothing reads.
    [encoding] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    token_ids: list[int] = encoding.ids
    if not token_ids:
        raise ValueError(f"{what} must have at least one token, got the text {text!r:.100}")
    return token_ids
