"""Bad words are not written, after a space or not, in however many tokens: in every kind of tokenizer."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from changes_oracle import continued
from hypothesis import given, settings
from hypothesis import strategies as st
from served import IDS, TEXTS, TOKENIZER, params, texts
from tokenizers_of_all_kinds import tokenizer_of

from roseinfer.llm.bad_words import bad_words


@pytest.mark.parametrize("drawn", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "drawn"])
def test_bad_words_are_transformers(llm, tiny, drawn):
    plain = texts(llm.generate(TEXTS[:3], params(**drawn)))
    words = [text.split()[0] for text in plain] + ["zzz", plain[0].split()[1]]
    asked = params(bad_words=words, **drawn)
    ids = bad_words(words, TOKENIZER, 2048).words
    assert len(ids) > len(words)  # alone, and after a space
    outputs = llm.generate(TEXTS[:3], [asked, asked, params(**drawn)])
    for prompt, output in zip(IDS[:2], outputs, strict=False):
        wanted = continued(tiny, prompt, replace(asked, bad_words=()), ids)[0]
        assert output.outputs[0].token_ids == wanted
    assert texts(outputs)[0] != plain[0] and texts(outputs)[2] == plain[2]


def test_a_bad_word_of_several_tokens_may_begin(llm):
    """Only its last token is banned, and only after the others."""
    plain = llm.generate(TEXTS[0], params())[0].outputs[0].token_ids
    word = TOKENIZER.decode(plain[2:5])
    ids = bad_words([word], TOKENIZER, 2048).words
    assert plain[2:5] in ids
    made = llm.generate(TEXTS[0], params(bad_words=word))[0].outputs[0].token_ids
    assert made[:4] == plain[:4] and made[4] != plain[4]


def test_a_word_is_not_written_after_a_space_either(llm):
    """Most words have another number of tokens there."""
    plain = llm.generate(TEXTS, params(20))
    written = {word for text in texts(plain) for word in re.findall(r"(?<= )[a-z]+(?=[ .])", text)}
    longer = [word for word in written if len(ids_of(word)) > len(ids_of(f" {word}"))]
    assert len(longer) > 3
    for output in llm.generate(TEXTS, params(20, bad_words=longer)):
        assert not {*longer} & {*re.findall("[a-z]+", output.outputs[0].text)}


@pytest.mark.parametrize("kind", ["bundled", "byte-level", "llama", "metaspace"])
@settings(deadline=None, max_examples=60)
@given(
    word=st.text("newday", min_size=1, max_size=4) | st.sampled_from(["no way", "é", "你好", "😀"]),
    before=st.sampled_from(["", " ", ".", "\n", "a ", "x\n ", "  "]),
    after=st.sampled_from(["", " ", ".", "\n"]),
    given_after_a_space=st.booleans(),
)
def test_no_text_with_the_word_is_written(kind, word, before, after, given_after_a_space):
    tokenizer = tokenizer_of(kind)
    words = bad_words([f" {word}" if given_after_a_space else word], tokenizer, tokenizer.get_vocab_size())
    prompt = "x."
    whole = tokenizer.encode(prompt + before + word + after, add_special_tokens=False).ids
    new = whole[len(tokenizer.encode(prompt, add_special_tokens=False).ids) :]
    assert any(is_banned(words, new[:at], token) for at, token in enumerate(new))


@pytest.mark.parametrize("word", [" ", "\n", "\t", "  ", " \n"])
@pytest.mark.parametrize("kind", ["bundled", "byte-level", "llama", "metaspace"])
def test_a_word_may_be_white_space_alone(kind, word):
    tokenizer = tokenizer_of(kind)
    words = bad_words([word], tokenizer, tokenizer.get_vocab_size())
    new = tokenizer.encode(f"x{word}", add_special_tokens=False).ids
    assert any(is_banned(words, new[:at], token) for at, token in enumerate(new))


def test_white_space_is_taken_by_the_engine(llm):
    [space] = ids_of(" ")
    output = llm.generate(TEXTS[0], params(20, bad_words=[" ", "\n"]))[0].outputs[0]
    assert "\n" not in output.text and space not in output.token_ids


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (" ", "^each of bad_words must have at least one token, got the text ' '$"),
        ("\ud800", "^each of bad_words must be Unicode text, character 0 is half of a surrogate$"),
    ],
)
def test_a_word_without_a_token_is_one_error(word, message):
    with pytest.raises(ValueError, match=message):
        bad_words(["a", word], tokenizer_of("wordpiece"), 10)


def ids_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def is_banned(words, output_ids: list[int], token_id: int) -> bool:
    return bool(words(output_ids, torch.zeros(1 + max([token_id, *sum(words.words, [])])))[token_id].isinf())
