"""load_tokenizer gives the token ids of transformers' AutoTokenizer, for folders of every kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, processors
from tokenizers_of_all_kinds import KINDS, TEXTS, tokenizer_of

from roseinfer.models import ModelLoadError, load_tokenizer

PROMPTS = [*TEXTS, "None", " a  new day\n", "a", "é", "[UNK] a new newer day.", "<s>a</s> <|end|> né <tool>", "12.5"]


def written(path: Path, tokenizer: Tokenizer, config: dict | None = None, model_type: str | None = None) -> Path:
    path.mkdir()
    tokenizer.save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    if model_type:
        (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    return path


def copy_of(kind: str) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_of(kind).to_str())


def assert_same_ids(folder: Path) -> list[list[int]]:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    for special in (True, False):
        ids = [ours.encode(text, add_special_tokens=special).ids for text in PROMPTS]
        assert ids == [theirs(text, add_special_tokens=special).input_ids for text in PROMPTS]
    return [ours.encode(text).ids for text in PROMPTS]


BYTE_LEVEL = {"eos_token": "<|end|>"}
PIECES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
CONFIGS = {
    "no-config": ("byte-level", None, None),
    "backend": ("byte-level", {"tokenizer_class": "TokenizersBackend"} | BYTE_LEVEL, None),
    "old-name": ("byte-level", {"tokenizer_class": "PreTrainedTokenizerFast"} | BYTE_LEVEL, "gpt2"),
    "gpt2": ("byte-level", {"tokenizer_class": "GPT2Tokenizer", "unk_token": "<|end|>"} | BYTE_LEVEL, "gpt2"),
    "prefix-space": (
        "byte-level",
        {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True, "unk_token": "<|end|>"},
        "gpt2",
    ),
    "prefix-space-of-tokenizer-json": ("byte-level", {"add_prefix_space": True} | BYTE_LEVEL, None),
    "qwen2": ("byte-level", {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|end|>"} | BYTE_LEVEL, "qwen2"),
    "qwen3": ("byte-level", {"tokenizer_class": "Qwen2Tokenizer"} | BYTE_LEVEL, "qwen3"),
    "llama": ("llama", {"tokenizer_class": "LlamaTokenizer", "legacy": False} | PIECES, "llama"),
    "llama-legacy": ("llama", {"tokenizer_class": "LlamaTokenizerFast", "legacy": True} | PIECES, "llama"),
    "llama-no-bos": ("llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False} | PIECES, "llama"),
    "llama-eos": ("llama", {"add_bos_token": True, "add_eos_token": True} | PIECES, "llama"),
    "llama-bytes": ("byte-level", {"tokenizer_class": "LlamaTokenizer"} | BYTE_LEVEL, "llama"),
    "metaspace": ("metaspace", PIECES, None),
    "wordpiece": ("wordpiece", {"unk_token": "[UNK]"}, None),
    "bos": ("byte-level", {"add_bos_token": True, "bos_token": "<|end|>"} | BYTE_LEVEL, None),
    "more-special-tokens": (
        "byte-level",
        {"extra_special_tokens": ["no way"], "bos_token": "Return"} | BYTE_LEVEL,
        None,
    ),
    "split-special-tokens": ("byte-level", {"split_special_tokens": True} | BYTE_LEVEL, None),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_ids_are_transformers_own(tmp_path, case):
    kind, config, model_type = CONFIGS[case]
    assert_same_ids(written(tmp_path / "folder", copy_of(kind), config, model_type))


@pytest.mark.parametrize(
    ("kind", "class_name"),
    [*((kind, None) for kind in KINDS), ("bundled", "GPT2Tokenizer"), ("llama", "LlamaTokenizer")],
)
def test_texts_are_neither_cut_nor_padded(tmp_path, kind, class_name):
    """The state that a training program left in tokenizer.json: transformers passes over it, too."""
    config = {"tokenizer_class": class_name} if class_name else None
    plain = assert_same_ids(written(tmp_path / "plain", copy_of(kind), config))
    stateful = copy_of(kind)
    stateful.enable_truncation(max_length=3, stride=1)
    stateful.enable_padding(length=6, pad_id=0, pad_token="<pad>")
    assert len(stateful.encode("a").ids) == 6 != len(plain[PROMPTS.index("a")])
    assert assert_same_ids(written(tmp_path / "stateful", stateful, config)) == plain


def test_a_prefix_space_is_put_where_transformers_puts_it(tmp_path):
    """GPT2Tokenizer reads add_prefix_space; TokenizersBackend has tokenizer.json's own setting."""
    bundled = copy_of("bundled")
    ids = {}
    for name in ("GPT2Tokenizer", "TokenizersBackend"):
        config = {"tokenizer_class": name, "add_prefix_space": True}
        folder = written(tmp_path / name, bundled, config, "gpt2")
        assert_same_ids(folder)
        ids[name] = load_tokenizer(str(folder)).encode("None").ids
    assert ids == {"GPT2Tokenizer": bundled.encode(" None").ids, "TokenizersBackend": bundled.encode("None").ids}
    assert ids["GPT2Tokenizer"] != ids["TokenizersBackend"]


@pytest.mark.parametrize(
    "processor",
    [
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing("<|end|> $A <|end|>", special_tokens=[("<|end|>", 0)]),
        processors.Sequence(
            [processors.ByteLevel(), processors.TemplateProcessing("$A <|end|>", special_tokens=[("<|end|>", 0)])]
        ),
        processors.RobertaProcessing(("<|end|>", 0), ("<|end|>", 0)),
    ],
    ids=["bytes", "template", "sequence", "roberta"],
)
@pytest.mark.parametrize("config", [None, {"tokenizer_class": "GPT2Tokenizer"}, {"add_bos_token": True}])
def test_what_a_post_processor_adds_is_added(tmp_path, processor, config):
    tokenizer = copy_of("byte-level")
    tokenizer.post_processor = processor
    config = None if config is None else config | {"bos_token": "<|end|>"} | BYTE_LEVEL
    assert_same_ids(written(tmp_path / "folder", tokenizer, config))


def test_added_tokens_of_the_config_alone_are_tokens(tmp_path):
    added = {
        "362": {
            "content": "new 😀",
            "special": False,
            "normalized": False,
            "single_word": False,
            "lstrip": True,
            "rstrip": False,
        }
    }
    tokenizer = copy_of("byte-level")
    tokenizer.add_tokens([AddedToken("instance", lstrip=True)])
    folder = written(tmp_path / "folder", tokenizer, {"added_tokens_decoder": added} | BYTE_LEVEL)
    assert_same_ids(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has no model: neither config.json nor a GGUF file"),
        ({"tokenizer.json": ""}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": "{}"}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": '{"model": 3}'}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": "\x00"}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": None, "tokenizer_config.json": "["}, "tokenizer.json is not a tokenizer: "),
        (
            {"tokenizer.json": None, "tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'},
            "tokenizer_class ByT5Tokenizer does not use tokenizer.json, and is not supported",
        ),
    ],
    ids=["none", "empty", "nothing-in-it", "no-model", "no-json", "config", "python"],
)
def test_a_folder_without_a_tokenizer_is_one_error(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(tokenizer_of("byte-level").to_str() if text is None else text)
    with pytest.raises(ModelLoadError, match=message) as raised:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(raised.value)
