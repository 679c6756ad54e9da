"""Small tokenizers of every kind that is served, with tokens that end within a character."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from roseinfer.models import load_tokenizer

TEXTS = ["Return a new 😀 instance.", "你好,世界 👩‍👧 é ñ", "def f(x):\n    return x\n\n", "no way, no 🏳️‍🌈"]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return {
        "bundled": lambda: load_tokenizer("tiny"),
        "byte-level": byte_level,
        "llama": llama,
        "metaspace": metaspace,
        "wordpiece": wordpiece,
        "none": none,
    }[kind]()


KINDS = ["bundled", "byte-level", "llama", "metaspace", "wordpiece", "none"]


def byte_level() -> Tokenizer:
    """Half its tokens are bytes or pairs of them. Added ones have a space, or a letter that means a byte."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<|end|>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_tokens(["a tool é", "né", "<tool>"])
    return tokenizer


def pieces() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A vocabulary after SentencePiece: special tokens, the 256 bytes, spaces, letters and a few merges of them."""
    merges = [("▁", "a"), ("n", "e"), ("ne", "w"), ("▁", "new"), ("▁", "▁")]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz.,", "你"]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    return {word: i for i, word in enumerate(words)}, merges


def llama() -> Tokenizer:
    """As Llama 2: a space before the text, dropped when it is decoded; a BOS token."""
    vocabulary, merges = pieces()
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace() -> Tokenizer:
    vocabulary, merges = pieces()
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def wordpiece() -> Tokenizer:
    words = ["[UNK]", "a", "new", "##er", "day", ".", "##.", "don", "'", "t"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]"])
    return tokenizer


def none() -> Tokenizer:
    """Whole words, and no decoder: they are joined with spaces."""
    return Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "new": 2, "day": 3}, unk_token="<unk>"))
