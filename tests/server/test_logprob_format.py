"""Tokens with log-probabilities as OpenAI's API writes them: their bytes join to the text, and none hides another."""

from __future__ import annotations

import codecs
import json

import pytest
from oracles import small_llama
from running import SIZES, running_server
from tokenizers_of_all_kinds import tokenizer_of

from roseinfer.llm.llm import LLM
from roseinfer.llm.vocabulary import Vocabulary
from roseinfer.sequence import Logprob
from roseinfer.server.logprob_format import TokenTexts
from roseinfer.server.output_stream import Delta

TEXT = "no 🦖 way, 你好 é"
KINDS = ["bundled", "byte-level", "llama", "metaspace"]


def delta_of(token_ids: list[int], others: dict[int, float] | None = None) -> Delta:
    """Each token was chosen at -0.1. others: the log-probabilities of further ones at each place."""
    at = {token: Logprob(value, 1) for token, value in (others or {}).items()}
    return Delta(0, "", token_ids, [{token: Logprob(-0.1, 1)} | at for token in token_ids])


def bytes_of_name(name: str) -> bytes:
    """Return the bytes that a client reads in a token of a completion."""
    return codecs.escape_decode(name.removeprefix("bytes:"))[0] if name.startswith("bytes:") else name.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_chats_tokens_join_to_the_text(kind):
    vocabulary = Vocabulary(tokenizer_of(kind))
    ids = vocabulary.tokenizer.encode(TEXT, add_special_tokens=False).ids
    content = TokenTexts(vocabulary).of_chat(delta_of(ids), 1)["content"]
    assert bytes(sum((one["bytes"] for one in content), [])).decode().removeprefix(" ") == TEXT
    assert all(one["bytes"] == one["top_logprobs"][0]["bytes"] for one in content)
    parts = [one for one in content if "\\x" in one["token"]]
    assert len(parts) > 1 and all(codecs.escape_decode(one["token"])[0] == bytes(one["bytes"]) for one in parts)
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in content if one not in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_completions_join_to_the_text(kind):
    vocabulary = Vocabulary(tokenizer_of(kind))
    ids = vocabulary.tokenizer.encode(TEXT, add_special_tokens=False).ids
    made = TokenTexts(vocabulary).of_completion(delta_of(ids), vocabulary.offsets(ids))
    assert b"".join(map(bytes_of_name, made["tokens"])).decode().removeprefix(" ") == TEXT
    assert all(top == {name: -0.1} for name, top in zip(made["tokens"], made["top_logprobs"], strict=True))


def test_parts_of_characters_are_different_candidates():
    """Decoded one by one, each of them would be the same replacement character."""
    vocabulary = Vocabulary(tokenizer_of("byte-level"))
    first, *others = (vocabulary.tokenizer.token_to_id(letter) for letter in "ðâã")
    made = TokenTexts(vocabulary).of_completion(delta_of([first], dict.fromkeys(others, -5.0)), vocabulary.offsets())
    assert made["tokens"] == [r"bytes:\xf0"]
    assert made["top_logprobs"] == [{r"bytes:\xf0": -0.1, r"bytes:\xe2": -5.0, r"bytes:\xe3": -5.0}]


@pytest.mark.parametrize("chosen", ["a", "<0x61>"])
def test_of_tokens_with_one_text_the_chosen_one_counts_and_else_the_likeliest(chosen):
    vocabulary = Vocabulary(tokenizer_of("llama"))
    token_to_id = vocabulary.tokenizer.token_to_id
    spelled = {"b": -1.0, "<0x62>": -4.0, "a": -5.0, "<0x61>": -6.0}
    others = {token_to_id(token): value for token, value in spelled.items()}
    del others[token_to_id(chosen)]
    made = TokenTexts(vocabulary).of_completion(delta_of([token_to_id(chosen)], others), vocabulary.offsets())
    assert (made["token_logprobs"], made["top_logprobs"]) == ([-0.1], [{"a": -0.1, "b": -1.0}])


def test_without_a_tokenizer_tokens_have_no_bytes():
    texts = TokenTexts(None)
    [one] = texts.of_chat(delta_of([7]), 0)["content"]
    assert (one["token"], one["bytes"]) == ("token_id:7", None)
    made = texts.of_completion(delta_of([7, 8]), None)
    assert (made["tokens"], made["text_offset"]) == (["token_id:7", "token_id:8"], [0, 0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("byte-level", marks=pytest.mark.nightly), "llama"])  # both, above
def test_a_completion_can_be_put_together_from_its_tokens(kind):
    tokenizer = tokenizer_of(kind)
    model = small_llama("llama", vocab_size=tokenizer.get_vocab_size(), eos_token_id=0)
    sizes = {name: size for name, size in SIZES.items() if name != "device"} | {"tokenizer": tokenizer}
    body = {"prompt": "a new", "max_tokens": 60, "logprobs": 5, "structured_outputs": {"choice": [TEXT]}}
    with running_server(serving={"make_llm": lambda: LLM(model, **sizes)}) as server:
        status, whole = server.ask("/v1/completions", body)
        assert status == 200, whole
        events = server.exchange("/v1/completions", body | {"stream": True})[1].split("\n\n")
    [choice] = whole["choices"]
    found = choice["logprobs"]
    *names, end = found["tokens"]
    assert (b"".join(map(bytes_of_name, names)).decode(), choice["text"]) == (TEXT, TEXT)
    assert all(len(top) >= 5 and top[name] == value for name, value, top in zip(*first_three(found), strict=True))
    # 1. A token begins where the characters before it end. The end token is no text.
    starts = [len(b"".join(map(bytes_of_name, names[:i])).decode(errors="ignore")) for i in range(len(names))]
    assert found["text_offset"] == [*starts, len(TEXT)]
    # 2. A stream says the same, whatever its chunks.
    parts = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events if "choices" in event]
    assert "".join(part["text"] for part in parts) == TEXT
    assert {name: sum((part["logprobs"][name] for part in parts), []) for name in found} == found


def first_three(found: dict) -> tuple[list, list, list]:
    return found["tokens"], found["token_logprobs"], found["top_logprobs"]
