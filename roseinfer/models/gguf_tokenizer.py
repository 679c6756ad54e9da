"""The tokenizer of a GGUF file, made from its metadata, with the token ids that llama.cpp has for a text.

A file names how its tokens were learned: tokenizer.ggml.model is gpt2 (merges of bytes) or llama (SentencePiece), and
tokenizer.ggml.pre how a text is split before bytes are merged.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from .gguf_file import GgufFile

KEY = "tokenizer.ggml"
TEMPLATE = "tokenizer.chat_template"
# Kinds of tokens that are found whole in a text; the model writes the first two for itself.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
MOST_LETTERS = 256  # of a token of SentencePiece: merges are looked for at each of its letters

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
BY_CASE = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _by_words(numbers: str) -> str:
    return (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


DEFAULT = "default"
# How a text is split, by each of these patterns after the other, for each tokenizer.ggml.pre.
SPLITS = {
    DEFAULT: (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(("gpt-2", "olmo"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), (_by_words(r"\p{N}"),)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), (_by_words(r"\p{N}{1,3}"),)),
    "tekken": (BY_CASE,),
}
# A word that is a token stays one, whatever its letters merge to, and a text begins with BOS if the file does not say.
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """Make the tokenizer of a GGUF file. Raises ValueError, naming the key, for one that is not supported."""
    kind = file.metadata.get(f"{KEY}.model")
    if kind is None:
        raise ValueError(f"its metadata has no tokenizer ({KEY}.model)")
    tokens = _texts(file, "tokens")
    if kind not in ("gpt2", "llama"):
        raise ValueError(f"{KEY}.model={kind!r} is not supported, only gpt2, llama")
    try:
        tokenizer = _byte_level(file, tokens) if kind == "gpt2" else _sentencepiece(file, tokens)
        _add_whole_tokens(file, tokenizer, tokens)
        _add_ends(file, tokenizer, begins=kind == "llama" or file.metadata.get(f"{KEY}.pre") in WHOLE_WORDS)
    except ValueError:
        raise
    except Exception as e:  # the package tokenizers raises nothing narrower for merges without tokens
        raise ValueError(f"its tokenizer cannot be made: {e}") from e
    return tokenizer


def special_tokens(file: GgufFile) -> dict[str, str]:
    """Return the special tokens that a chat template may name, such as {"bos_token": "<s>"}."""
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found = {name: _id(file, key) for name, key in keys.items()}
    return {name: _texts(file, "tokens")[i] for name, i in found.items() if i is not None}


def chat_templates(file: GgufFile) -> dict[str, str]:
    """Return the chat templates by name; the usual one is "default"."""
    return {
        key.removeprefix(TEMPLATE).lstrip(".") or "default": value
        for key, value in file.metadata.items()
        if key.startswith(TEMPLATE) and isinstance(value, str)
    }


def end_token(file: GgufFile) -> int | None:
    """Return the id of the token that ends a text, None where the file names none."""
    return _id(file, "eos")


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = file.metadata.get(f"{KEY}.pre", DEFAULT)
    if pre not in SPLITS:
        raise ValueError(f"{KEY}.pre={pre!r} is not supported, only {', '.join(SPLITS)}")
    merges = [_halves(merge) for merge in _texts(file, "merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre in WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[pre]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _halves(merge: str) -> tuple[str, str]:
    left, _, right = merge[1:].partition(" ")  # its first letter is no separator
    if not right:
        raise ValueError(f"{KEY}.merges has {merge!r:.60}, which is no pair")
    return merge[0] + left, right


def _sentencepiece(file: GgufFile, tokens: list[str]) -> Tokenizer:
    scores = file.metadata.get(f"{KEY}.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ValueError(f"{KEY}.scores must be as many numbers as there are tokens, {len(tokens):,}")
    if (longest := max(map(len, tokens), default=0)) > MOST_LETTERS:
        raise ValueError(f"{KEY}.tokens has a token of {longest:,} letters, allowed: at most {MOST_LETTERS}")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    unknown = tokens[_id(file, "unknown") or 0]
    merges = _merges_by_score(vocabulary, scores)
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    decoded: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if file.metadata.get(f"{KEY}.add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend("▁"))
        decoded.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer, tokenizer.decoder = normalizers.Sequence(spaces), decoders.Sequence(decoded)
    return tokenizer


def _merges_by_score(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token: those that make the one of the highest score come first."""
    pairs = [
        (-scores[i], vocabulary[token[:cut]], vocabulary[token[cut:]], (token[:cut], token[cut:]))
        for token, i in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    return [pair for *_, pair in sorted(pairs)]


def _add_whole_tokens(file: GgufFile, tokenizer: Tokenizer, tokens: list[str]) -> None:
    """Let tokens of some kinds be found whole in a text, before it is split."""
    types = file.metadata.get(f"{KEY}.token_type", [])
    for special, kinds in ((True, (UNKNOWN, CONTROL)), (False, (USER_DEFINED,))):
        found = [token for token, its in zip(tokens, types, strict=False) if its in kinds and token]
        added = [AddedToken(token, normalized=False, special=special) for token in found]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _add_ends(file: GgufFile, tokenizer: Tokenizer, begins: bool) -> None:
    """Let a text begin with BOS and end with EOS, where the file says so. begins: with BOS if it says nothing."""
    usual = {"bos": begins, "eos": False}
    wanted = {key: file.metadata.get(f"{KEY}.add_{key}_token", add) for key, add in usual.items()}
    ids = {key: i for key, add in wanted.items() if add and (i := _id(file, key)) is not None}
    if not ids:
        return
    names = {key: _texts(file, "tokens")[i] for key, i in ids.items()}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*([names["bos"]] if "bos" in ids else []), "$A", *([names["eos"]] if "eos" in ids else [])],
        special_tokens=[(names[key], i) for key, i in ids.items()],
    )


def _texts(file: GgufFile, key: str) -> list[str]:
    texts = file.metadata.get(f"{KEY}.{key}")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{KEY}.{key} must be a list of texts, got {texts!r:.60}")
    return texts


def _id(file: GgufFile, key: str) -> int | None:
    """Return the id of a special token. Raises ValueError for one that is no token."""
    name = f"{KEY}.{key}_token_id"
    found: Any = file.metadata.get(name)
    if found is not None and not (isinstance(found, int) and 0 <= found < len(_texts(file, "tokens"))):
        raise ValueError(f"{name}={found!r} is no token: there are {len(_texts(file, 'tokens')):,}")
    return found
