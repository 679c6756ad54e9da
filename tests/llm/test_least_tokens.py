"""A text that is too long is refused by its length before it is read; no text that fits ever is."""

from __future__ import annotations

import random
import sys
import unicodedata

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers_of_all_kinds import KINDS, byte_level, llama, tokenizer_of

from roseinfer.llm.least_tokens import COMPOSED, most_characters
from roseinfer.llm.llm import LLM

ACCENTS = "\u0345\u0301\u0313"  # alpha and these are one character


def normalized(*steps: normalizers.Normalizer) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([*steps])
    return tokenizer


BOUNDED = {
    **{kind: lambda kind=kind: tokenizer_of(kind) for kind in KINDS if kind not in ("wordpiece", "none")},
    "NFC": lambda: normalized(normalizers.NFC()),
    "NFKC, and NFC again": lambda: normalized(normalizers.NFKC(), normalizers.Lowercase(), normalizers.NFC()),
    "NFD": lambda: normalized(normalizers.NFD()),
    "a long added token": lambda: with_tokens("\ufdfa", "a long tool " * 20),
}


def with_tokens(*texts: str) -> Tokenizer:
    tokenizer = normalized(normalizers.NFKC())
    tokenizer.add_tokens([*texts])
    return tokenizer


def texts_for(tokenizer: Tokenizer, seed: int) -> list[str]:
    """Texts of few tokens: long ones of the vocabulary, again and again; characters that compose; and any others."""
    draw = random.Random(seed)
    longest = sorted(tokenizer.get_vocab(with_added_tokens=True), key=len)[-20:]
    words = [tokenizer.decode([tokenizer.token_to_id(word)], skip_special_tokens=False) for word in longest]
    words += ["α" + ACCENTS, "ᄒ\u1161\u11ab", "\ufdfa", "e\u0301", " ", "\n", "😀", "\u200d", "\x00", "a"]
    return [draw.choice(words) * draw.randint(1, 40) for _ in range(60)] + [
        "".join(draw.choices(words, k=draw.randint(1, 40))) for _ in range(60)
    ]


@pytest.mark.parametrize("kind", BOUNDED)
def test_a_token_never_stands_for_more_characters(kind):
    tokenizer = BOUNDED[kind]()
    most = most_characters(tokenizer)
    assert most
    for text in texts_for(tokenizer, seed=7):
        num_tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert len(text) <= most * num_tokens, text


def test_no_character_is_composed_of_more_than_is_reckoned_with():
    longest = max(len(unicodedata.normalize("NFD", chr(code))) for code in range(sys.maxunicode + 1))
    assert longest == COMPOSED


def swallowing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<tool>", rstrip=True)])
    return tokenizer


def removing() -> Tokenizer:
    tokenizer = byte_level()
    split = pre_tokenizers.Split(" ", behavior="removed")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel()])
    return tokenizer


def without_bytes() -> Tokenizer:
    tokenizer = llama()
    tokenizer.model = models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True)
    return tokenizer


UNBOUNDED = {
    "a word of any length is one token": (lambda: tokenizer_of("wordpiece"), "a" * 5000),
    "the same without a decoder": (lambda: tokenizer_of("none"), "b" * 5000),
    "a token swallows the spaces after it": (swallowing, "<tool>" + " " * 5000),
    "a pre-tokenizer removes spaces": (removing, "a" + " " * 5000),
    "a normalizer strips": (lambda: normalized(normalizers.Strip()), "a" + " " * 5000),
    "a normalizer removes": (lambda: normalized(normalizers.Replace("a", "")), "b" + "a" * 5000),
    "unknown characters are one token": (without_bytes, "b" * 5000),
}


@pytest.mark.parametrize("kind", UNBOUNDED)
def test_where_a_few_tokens_may_be_any_text_there_is_no_bound(kind):
    make, text = UNBOUNDED[kind]
    tokenizer = make()
    assert most_characters(tokenizer) is None
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) < 5


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny", num_kvcache_blocks=32, block_size=16, max_num_seqs=2, device="cpu")


def test_what_cannot_fit_is_refused_before_it_is_read(llm, monkeypatch):
    monkeypatch.setattr(llm, "tokenizer", Unread())
    most = most_characters(tokenizer_of("bundled"))
    with pytest.raises(ValueError, match=r"at least 512 tokens.* at most 511 with max_model_len=512"):
        llm.generate("x" * (511 * most + 1))
    with pytest.raises(AssertionError, match="read"):
        llm.generate("x" * 511 * most)


class Unread:
    def encode(self, *_: object, **__: object) -> None:
        raise AssertionError("a text was read")

    encode_batch_fast = encode


def test_the_longest_prompt_that_fits_is_answered(llm):
    tokenizer = llm.get_tokenizer()
    words = sorted(tokenizer.get_vocab(), key=len)
    longest = next(
        text
        for word in reversed(words)
        if (text := tokenizer.decode([tokenizer.token_to_id(word)])) and len(tokenizer.encode(text * 511).ids) == 511
    )
    [output] = llm.generate(longest * 511, use_tqdm=False)
    assert len(output.prompt_token_ids) == 511 and len(output.outputs[0].token_ids) == 1
