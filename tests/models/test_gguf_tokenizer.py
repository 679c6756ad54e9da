"""Tokenizers of GGUF files: the ids of transformers and of llama.cpp, also for odd text, and what is refused."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import gguf
import pytest
import torch
from fresh_python import printed_by
from tokenizers_of_all_kinds import TEXTS, tokenizer_of

from roseinfer.bench.peers import why_no_peers
from roseinfer.bench.peers.process import PYTHON
from roseinfer.models import ModelLoadError, load_tokenizer, model_tokenizer
from roseinfer.models.gguf_file import GgufFile
from roseinfer.models.gguf_model import load_as_stored
from roseinfer.models.gguf_path import gguf_path
from roseinfer.models.gguf_tokenizer import tokenizer_of as tokenizer_of_file
from roseinfer.paths import TINY
from roseinfer.reference import reference_logits

PROMPTS = ["The capital of France is", "def fibonacci(n):\n    ", "Once upon a time, 3 small bears"]
ODD = [
    *TEXTS,
    "",
    " ",
    "   ",
    " a  12 34.5  x   7",
    "1234567890 1 22 333",
    "tabs\t\t\n\r\n  \r\n end   ",
    "שלום עולם مرحبا ١٢٣",
    "don't We'LL IT'S 'S",
    "x=1;y==2 ->~~ $5 ^|`",
    "\u200b\u00a0 \u3000 x",
    "日本語のテキスト。 ﬁ é e\u0301",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|> <|im_end",
    "a\x00b\ufffd",
]


def write_vocabulary(path: Path, model: str, tokens: list[str], kinds: list[int], **metadata) -> GgufFile:
    """Write a file that has a tokenizer alone. metadata: by its key in GGUF, without tokenizer.ggml."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    for key, value in metadata.items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{key}", value)
        else:
            add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32}[type(value)]
            add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufFile(path)


def byte_level(path: Path, **metadata) -> GgufFile:
    """Write the bundled model's vocabulary."""
    state = json.loads((TINY / "tokenizer.json").read_text())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    kinds = [3 if token.startswith("<|") else 1 for token in tokens]
    merges = [" ".join(merge) for merge in state["merges"]]
    return write_vocabulary(path, "gpt2", tokens, kinds, **{"merges": merges} | metadata)


@pytest.mark.slow
@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "tekken"])
def test_ids_are_those_of_transformers_where_it_knows_the_splits(pre, tmp_path):
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    path = tmp_path / "model.gguf"
    ours = tokenizer_of_file(byte_level(path, pre=pre))
    architecture, tokens, _ = get_gguf_tokenizer(str(path))
    theirs, _ = convert_gguf_tokenizer(architecture, tokens)
    assert [ours.encode(text).ids for text in ODD] == [theirs.encode(text).ids for text in ODD]


def test_the_bundled_models_file_has_its_ids(tmp_path):
    ours, wanted = tokenizer_of_file(byte_level(tmp_path / "model.gguf", pre="gpt-2")), load_tokenizer("tiny")
    for text in ODD:
        ids = ours.encode(text).ids
        assert ids == wanted.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_merges_of_sentencepiece_follow_from_scores(tmp_path):
    wanted = tokenizer_of("llama")
    vocabulary = wanted.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 260), 4]
    assert tokens[:3] == ["<unk>", "<s>", "</s>"] and tokens[-1] == "<tool>"
    scores = [-float(i) for i in range(len(tokens))]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    ours = tokenizer_of_file(write_vocabulary(tmp_path / "model.gguf", "llama", tokens, kinds, scores=scores, **ids))
    for text in [*ODD, "a new newer day", "  a new", "<s>a</s> <tool> né", "<unk>"]:
        assert ours.encode(text).ids == wanted.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == wanted.decode(wanted.encode(text).ids)


@pytest.mark.parametrize(
    ("add", "ids"), [({}, [400]), ({"bos": True}, [300, 400]), ({"bos": True, "eos": True}, [300, 400, 301])]
)
def test_ends_of_a_text_where_the_file_says_so(add, ids, tmp_path):
    flags = {f"add_{key}_token": value for key, value in add.items()}
    file = byte_level(tmp_path / "model.gguf", pre="gpt-2", bos_token_id=300, eos_token_id=301, **flags)
    tokenizer = tokenizer_of_file(file)
    assert tokenizer.encode(tokenizer.decode([400])).ids == ids


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"pre": "sideways"}, "tokenizer.ggml.pre='sideways' is not supported, only default, gpt-2"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges has 'ab', which is no pair"),
        ({"merges": ["é é"]}, "its tokenizer cannot be made: .*out of vocabulary"),
        ({"bos_token_id": 10**6, "add_bos_token": True}, "tokenizer.ggml.bos_token_id=1000000 is no token: there are"),
    ],
)
def test_a_tokenizer_that_is_refused(metadata, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        tokenizer_of_file(byte_level(tmp_path / "model.gguf", **metadata))


def test_kinds_and_scores_that_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(
        ModelLoadError, match=r"model.gguf: tokenizer.ggml.model='bert' is not supported, only gpt2, ll"
    ):
        write_vocabulary(path, "bert", ["a"], [1])
        model_tokenizer(str(path))
    with pytest.raises(ValueError, match="tokenizer.ggml.scores must be as many numbers as there are tokens, 1"):
        tokenizer_of_file(write_vocabulary(path, "llama", ["a"], [1], scores=[1.0, 2.0]))
    with pytest.raises(ValueError, match="tokenizer.ggml.tokens has a token of 300 letters, allowed: at most 256"):
        tokenizer_of_file(write_vocabulary(path, "llama", ["a" * 300], [1], scores=[1.0]))


# The real model, and the real llama.cpp


@pytest.mark.slow
def test_smollm2_has_digits_alone():
    tokenizer = load_tokenizer("smollm2")
    assert tokenizer.encode("a  12 3").tokens == ["a", "ĠĠ", "1", "2", "Ġ", "3"]
    read = model_tokenizer("smollm2")
    assert (
        read.special_tokens["bos_token"] == "<|im_start|>" and read.end_token == 2 and "default" in read.chat_templates
    )


@pytest.mark.slow
def test_transformers_is_not_imported_for_it():
    given = "device='cpu', num_kvcache_blocks=1, max_model_len=64, enforce_eager=True"
    code = f"import sys; from roseinfer import LLM; LLM('smollm2', {given})"
    assert printed_by(f"{code}; print('transformers' in sys.modules)") == "False\n"


BY_LLAMA_CPP = """
import json, sys
from itertools import islice
from llama_cpp import Llama
asked = json.load(sys.stdin)
llm = Llama(asked["path"], vocab_only=asked["texts"] is not None, n_ctx=256, n_threads=1, verbose=False)
if asked["texts"] is not None:
    answer = [llm.tokenize(text.encode(), add_bos=False, special=True) for text in asked["texts"]]
else:
    drawn = [llm.generate(ids, top_k=1, temp=0.0, repeat_penalty=1.0) for ids in asked["prompts"]]
    answer = [list(islice(tokens, asked["count"])) for tokens in drawn]
print(json.dumps(answer))
"""
CLOSE = 0.5  # logits: llama.cpp rounds x to 8 bits before each product


def asked_of_llama_cpp(texts: list[str] | None = None, **asked) -> list[list[int]]:
    question = json.dumps({"path": str(gguf_path("smollm2")), "texts": texts} | asked)
    said = subprocess.run([str(PYTHON), "-c", BY_LLAMA_CPP], input=question, capture_output=True, text=True, check=True)
    return json.loads(said.stdout.splitlines()[-1])


if why_no_peers() is None:  # `make peers` has been run here

    @pytest.mark.slow
    def test_ids_are_those_of_llama_cpp():
        draw, letters = random.Random(0), " \t\n\r0123456789aé中🙂'.,-_=א١\u0301\u200d\u00a0\u3000²Ⅷ½Ab<|>s"
        texts = [*ODD, *("".join(draw.choices(letters, k=30)) for _ in range(500))]
        tokenizer = load_tokenizer("smollm2")
        for text, ids in zip(texts, asked_of_llama_cpp(texts), strict=True):
            assert tokenizer.encode(text).ids == ids, text

    @pytest.mark.slow
    def test_greedy_tokens_are_those_of_llama_cpp_up_to_a_near_tie():
        """Where the first other token is chosen, both had nearly the same logit."""
        tokenizer, model = load_tokenizer("smollm2"), load_as_stored(gguf_path("smollm2"))
        prompts = [tokenizer.encode(text).ids for text in PROMPTS]
        for prompt, theirs in zip(prompts, asked_of_llama_cpp(prompts=prompts, count=24), strict=True):
            logits = reference_logits(model, prompt + theirs)[len(prompt) - 1 : -1]
            gaps = logits.max(dim=1).values - logits.gather(1, torch.tensor(theirs)[:, None])[:, 0]
            print(f"largest gap {gaps.max():.3f}, at token {int(gaps.argmax())} of {len(theirs)}")
            assert gaps.max() < CLOSE
