"""Text while tokens come: equal to the tokenizer's own of all tokens, whole characters, stop strings, linear work."""

from __future__ import annotations

from os.path import commonprefix

import pytest
from draws import draws
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers_of_all_kinds import KINDS, TEXTS, tokenizer_of

from roseinfer.llm.detokenizer import byte_of_character
from roseinfer.llm.stop_strings import first_stop
from roseinfer.llm.vocabulary import Vocabulary

pytestmark = pytest.mark.slow


drawn = draws(50)
VOCABULARIES = {kind: Vocabulary(tokenizer_of(kind)) for kind in KINDS}


def token_ids(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, those of texts among them, and a few ids that the tokenizer does not have."""
    tokenizer = tokenizer_of(kind)
    anything = st.lists(st.integers(0, tokenizer.get_vocab_size() + 2), max_size=12)
    of_texts = st.sampled_from(TEXTS).map(lambda text: tokenizer.encode(text).ids)
    return st.lists(anything | of_texts, max_size=4).map(lambda parts: sum(parts, []))


def grow(kind: str, ids: list[int], prompt_ids=(), stop=(), **settings) -> tuple[list[str], str | None]:
    """(the text after each token and at the end, the stop string that was found)."""
    detokenizer = VOCABULARIES[kind].detokenizer(prompt_ids, stop, **settings)
    texts = []
    for token_id in ids:
        found = detokenizer.add(token_id)
        texts.append(detokenizer.text)
        if found:
            return texts, found
    found = detokenizer.finish()
    return [*texts, detokenizer.text], found


def grows(texts: list[str]) -> bool:
    return all(later.startswith(sooner) for sooner, later in zip(texts, texts[1:], strict=False))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", [True, False])
@drawn
@given(data=st.data())
def test_pieces_add_up_to_the_tokenizers_text(kind, skip, data):
    ids = data.draw(token_ids(kind))
    texts, _ = grow(kind, ids, skip_special_tokens=skip)
    assert texts[-1] == tokenizer_of(kind).decode(ids, skip_special_tokens=skip) and grows(texts)


def cut_anywhere(kind: str) -> st.SearchStrategy[tuple[list[int], list[int]]]:
    """A prompt and new tokens. Many are one text, cut at any of its tokens: within characters and runs of bytes."""

    @st.composite
    def cut(draw: st.DrawFn) -> tuple[list[int], list[int]]:
        ids = draw(token_ids(kind))
        at = draw(st.integers(0, len(ids)))
        return ids[:at], ids[at:]

    return cut() | st.tuples(token_ids(kind), token_ids(kind))


@pytest.mark.parametrize("kind", KINDS)
@draws(100)
@given(data=st.data())
def test_the_text_continues_the_prompts_and_repeats_none_of_it(kind, data):
    """Prompt and text are the text of all tokens. If the new tokens change the end of the prompt's own text, the text
    begins where that change does: a character is completed, or a run of byte tokens is no UTF-8 any more."""
    prompt, ids = data.draw(cut_anywhere(kind))
    decode = tokenizer_of(kind).decode
    text, of_prompt, of_all = grow(kind, ids, prompt)[0][-1], decode(prompt), decode(prompt + ids)
    assert of_all.endswith(text)
    before, kept = of_all.removesuffix(text), commonprefix([of_prompt, of_all])
    if before != kept:  # the tokenizer judges a run of byte tokens as a whole, and judges this one differently now
        changed, whole = of_prompt[len(kept) :], before[len(kept) :]
        assert kind in ("llama", "metaspace")
        if changed.strip("�"):  # it is no UTF-8 any more: each of its bytes is a replacement character
            assert whole == "�" * len(changed.encode())
        else:  # it is UTF-8 now: the characters that the prompt completes are the prompt's
            assert len(whole.encode()) <= len(changed) < len((whole + text[0]).encode())


def test_a_run_of_byte_tokens_at_the_prompts_end_is_no_text():
    """Llama 2 spells the ends of lines so. A stop string does not match them either."""
    tokenizer = tokenizer_of("llama")
    prompt, new = tokenizer.encode("new\n\n").ids, tokenizer.token_to_id("▁new")
    end = tokenizer.token_to_id("<0x0A>")
    assert prompt[-2:] == [end, end]
    assert grow("llama", [new], prompt)[0] == [" new"] * 2
    assert grow("llama", [end, new], prompt)[0] == ["", "\n new", "\n new"]
    assert grow("llama", [new, end, new], prompt, stop=("\n",)) == ([" new", " new", " new"], "\n")
    assert grow("llama", [], prompt, stop=("\n",)) == ([""], None)


@pytest.mark.parametrize("kind", ["byte-level", "llama"])
def test_a_character_that_the_prompt_begins_is_text_once_it_is_complete(kind):
    tokenizer = tokenizer_of(kind)
    a = tokenizer.token_to_id("a")
    spelled = {"byte-level": "Ã©", "llama": ["<0xC3>", "<0xA9>"]}[kind]  # é
    first, second = map(tokenizer.token_to_id, spelled)
    assert grow(kind, [second, a], [a, first])[0][-1] == "éa"
    assert grow(kind, [a], [a, first])[0][-1] == "a", "the prompt's text ends with the replacement character"
    assert grow(kind, [], [a, first])[0][-1] == ""


@pytest.mark.parametrize("kind", ["bundled", "byte-level", "llama", "metaspace"])
@drawn
@given(text=st.text(max_size=20) | st.sampled_from(TEXTS))
@example(text="x😀")
def test_no_half_character_is_shown(kind, text):
    tokenizer = tokenizer_of(kind)
    whole = tokenizer.decode(tokenizer.encode(text).ids)
    for ids in (tokenizer.encode(text).ids, tokenizer.encode(text, add_special_tokens=False).ids):
        assert all(whole.startswith(shown) for shown in grow(kind, ids)[0])


def test_a_run_of_byte_tokens_is_shown_when_it_ends():
    """The tokenizer makes four replacement characters of a face and a byte too many, so the face has to wait."""
    tokenizer = tokenizer_of("llama")
    face, a = tokenizer.encode("😀", add_special_tokens=False).ids[1:], tokenizer.token_to_id("a")
    assert len(face) == 4
    assert grow("llama", [a, *face, a])[0] == ["a", "a", "a", "a", "a", "a😀a", "a😀a"]
    assert grow("llama", [*face, face[0], a])[0][-2:] == ["�����a"] * 2


# Stop strings

STOPS = st.lists(st.text("no way.\n", min_size=1, max_size=5), min_size=1, max_size=3).map(tuple)


def read_until(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Letter by letter: (the text before the stop string that is complete first, that one)."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("kind", KINDS)
@drawn
@given(data=st.data(), stop=STOPS)
def test_stop_strings_are_found_wherever_tokens_end(kind, data, stop):
    ids = data.draw(token_ids(kind))
    texts, found = grow(kind, ids, stop=stop)
    assert (texts[-1], found) == read_until(tokenizer_of(kind).decode(ids), stop) and grows(texts)


@drawn
@given(text=st.text("abc", max_size=12), stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1).map(tuple))
def test_the_stop_string_that_is_complete_first_counts(text, stops):
    before, stop = read_until(text, stops)
    assert first_stop(text, stops) == (None if stop is None else (len(before), stop))


def test_what_may_begin_a_stop_string_is_held_back_and_given_back():
    ids = [tokenizer_of("byte-level").token_to_id(letter) for letter in "xnoxno"]
    texts, found = grow("byte-level", ids, stop=("now",))
    assert texts == ["x", "x", "x", "xnox", "xnox", "xnox", "xnoxno"] and found is None


def test_a_stop_string_ends_the_text_with_the_token_that_completes_it():
    ids = tokenizer_of("byte-level").encode("no way, no way").ids
    texts, found = grow("byte-level", ids, stop=("o wa",))
    assert found == "o wa" and texts[-1] == "n" and len(texts) < len(ids)


def test_a_stop_string_that_the_last_tokens_complete():
    """A line's end is a byte token for Llama 2: it is not known that its run is over before the request is."""
    ids = tokenizer_of("llama").encode("a\n").ids
    assert grow("llama", ids, stop=("\n",)) == (["", "a", "a", "a"], "\n")


def test_a_stop_string_may_stay_and_may_be_passed_over():
    ids = [tokenizer_of("byte-level").token_to_id(letter) for letter in "nowno"]
    assert grow("byte-level", ids, stop=("ow",), keeps_stop=True) == (["n", "n", "now"], "ow")
    detokenizer = VOCABULARIES["byte-level"].detokenizer((), ("ow", "w", "no"))
    assert [detokenizer.add(token, may_stop=at > 2) for at, token in enumerate(ids)] == [None] * 4 + ["no"]
    assert detokenizer.text == "now"


def test_a_stop_string_that_ends_within_what_was_searched_is_none():
    assert first_stop("abab", ("ab",)) == (0, "ab") and first_stop("abab", ("ab",), searched=2) == (2, "ab")
    assert first_stop("abab", ("ab",), searched=4) is None and first_stop("aba", ("ba", "a"), searched=1) == (1, "ba")


# Work


class Counted:
    """A tokenizer that adds up how many tokens it is asked to decode."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.num_decoded = tokenizer, 0

    def decode(self, ids: list[int], **settings: bool) -> str:
        self.num_decoded += len(ids)
        return self.tokenizer.decode(ids, **settings)

    def __getattr__(self, name: str) -> object:
        return getattr(self.tokenizer, name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("letters", [TEXTS[1], "\n", "\xff"])
def test_work_grows_with_the_output_and_not_with_its_square(kind, letters):
    tokenizer = Counted(tokenizer_of(kind))
    vocabulary = Vocabulary(tokenizer)
    ids = tokenizer_of(kind).encode(letters, add_special_tokens=False).ids * 500
    before, detokenizer = tokenizer.num_decoded, vocabulary.detokenizer(stop=("never",))
    for token_id in ids:
        detokenizer.add(token_id)
    detokenizer.finish()
    assert detokenizer.text == tokenizer_of(kind).decode(ids)
    assert tokenizer.num_decoded - before <= 3 * len(ids)


# Tokenizers


def test_bytes_are_spelled_as_the_library_spells_them():
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    byte_of = byte_of_character()
    assert sorted(byte_of.values()) == list(range(256)) and byte_of.keys() == set(pre_tokenizers.ByteLevel.alphabet())
    for text in [chr(i) for i in range(1, 0x500)] + ["\U0001f600", "￿", "\U0010ffff"]:
        assert [byte_of[character] for character in spell(text)[0][0]] == list(text.encode())


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.BPEDecoder(),
        decoders.CTC(),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ],
    ids=["suffix", "ctc", "replace-after-fuse", "two-spaces", "strip-end"],
)
def test_a_decoder_that_looks_beyond_a_token_is_refused(decoder):
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.decoder = decoder
    with pytest.raises(ValueError, match=r"^the tokenizer's decoder \(.*\) is not supported: it looks beyond a token$"):
        Vocabulary(tokenizer)
