"""load_tokenizer gives the token ids of transformers' AutoTokenizer, for folders of every kind."""

from __future__ import annotations

import ast
import json
import re
import warnings
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors, trainers
from tokenizers_of_all_kinds import KINDS, TEXTS, tokenizer_of

from roseinfer.models import ModelLoadError, load_tokenizer, pretrained_tokenizer

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
        ({}, "tokenizer.json does not exist"),
        ({"tokenizer.json": "{}"}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": "\x00"}, "tokenizer.json is not a tokenizer: "),
        ({"tokenizer.json": None, "tokenizer_config.json": "["}, "tokenizer.json is not a tokenizer: "),
        (
            {"tokenizer.json": None, "tokenizer_config.json": '{"tokenizer_class": "ByT5Tokenizer"}'},
            "tokenizer_class ByT5Tokenizer does not use tokenizer.json, and is not supported",
        ),
    ],
    ids=["none", "empty", "no-json", "config", "python"],
)
def test_a_folder_without_a_tokenizer_is_one_error(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(tokenizer_of("byte-level").to_str() if text is None else text)
    with pytest.raises(ModelLoadError, match=message) as raised:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(raised.value)


# Classes of transformers that cut texts by rules of their own


def warnings_of(folder: Path) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_tokenizer(str(folder))
    return [str(one.message) for one in caught if "tokenizer.json" in str(one.message)]


OTHER_RULES = [  # tokenizer.json's own rules are others than those of the class
    ("byte-level", "Qwen2Tokenizer", "qwen2"),
    ("byte-level", "Qwen2Tokenizer", "qwen3"),
    ("digits", "GPT2Tokenizer", "llama"),
    ("digits", "GPT2Tokenizer", "gpt2"),
    ("llama", "LlamaTokenizer", "llama"),
]


def of_kind(kind: str) -> Tokenizer:
    """digits: a byte-level tokenizer that takes numbers apart, digit by digit."""
    tokenizer = copy_of("byte-level" if kind == "digits" else kind)
    if kind == "digits":
        tokenizer.train_from_iterator(
            ["12345 12345 12345"] * 3,
            trainers.BpeTrainer(show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
        )
        apart = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(apart)
    return tokenizer


@pytest.mark.parametrize(("kind", "class_name", "model_type"), OTHER_RULES)
def test_other_rules_than_those_of_tokenizer_json_are_a_warning(tmp_path, kind, class_name, model_type):
    folder = written(tmp_path / "folder", of_kind(kind), {"tokenizer_class": class_name}, model_type)
    [message] = warnings_of(folder)
    found = re.fullmatch(
        rf"{folder}: transformers' {class_name} cuts texts by its own rules, not by those of tokenizer\.json: "
        r"in (.*) it finds (\[.*\]), and the file (\[.*\])\. A model that was trained with the file may answer worse\. "
        r"To use the file's rules, copy the tokenizer's files into a folder without config\.json, set "
        r'"tokenizer_class": "TokenizersBackend" in its tokenizer_config\.json, and give that folder as tokenizer',
        message,
    )
    text, theirs, own = map(ast.literal_eval, found.groups())
    assert theirs != own
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for tokenizer, tokens in ((load_tokenizer(str(folder)), theirs), (file, own)):
        assert " ".join(tokens) in " ".join(tokenizer.encode(text, add_special_tokens=False).tokens)


@pytest.mark.parametrize(("kind", "class_name", "model_type"), OTHER_RULES)
def test_the_way_out_that_the_warning_names_gives_the_files_own_tokens(tmp_path, kind, class_name, model_type):
    config = {"tokenizer_class": class_name, "chat_template": "{{ messages }}"}
    folder = written(tmp_path / "folder", of_kind(kind), config, model_type)
    assert warnings_of(folder)
    (folder / "config.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "TokenizersBackend"}))
    assert not warnings_of(folder)
    assert pretrained_tokenizer(str(folder)).chat_template == config["chat_template"]
    file, ours = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tokenizer(str(folder))
    assert all(file.encode(text).ids == ours.encode(text).ids for text in PROMPTS)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_another_space_after_a_special_token_is_a_warning(tmp_path, scheme, legacy):
    """A conversation has such a token before each message."""
    tokenizer = copy_of("llama")
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy} | PIECES
    folder = written(tmp_path / "folder", tokenizer, config, "llama")
    file, ours = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tokenizer(str(folder))
    texts = ["new", "<s>new</s>new"]
    ids = [[one.encode(text, add_special_tokens=False).ids for text in texts] for one in (file, ours)]
    assert bool(warnings_of(folder)) == (ids[0] != ids[1]) == (scheme != ("always" if legacy else "first"))


@pytest.mark.parametrize(
    ("kind", "class_name"),
    [("byte-level", "Qwen2Tokenizer"), ("byte-level", "GPT2Tokenizer"), ("llama", "LlamaTokenizer")],
)
def test_a_file_with_the_rules_of_its_class_is_no_warning(tmp_path, kind, class_name):
    import transformers

    model = json.loads(copy_of(kind).to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    getattr(transformers, class_name)(vocab=model["vocab"], merges=merges).save_pretrained(tmp_path / "folder")
    assert json.loads((tmp_path / "folder" / "tokenizer_config.json").read_text())["tokenizer_class"] == class_name
    assert not warnings_of(tmp_path / "folder")


def test_qwens_own_file_is_no_warning(tmp_path):
    """The file on the hub differs from one that transformers saves, but only in what changes no token."""
    tokenizer = copy_of("byte-level")
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    rule = words + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rule), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False} | BYTE_LEVEL
    assert not warnings_of(written(tmp_path / "folder", tokenizer, config, "qwen2"))


MISTRAL = {"mistral": ("llama", {"tokenizer_class": "LlamaTokenizer"} | PIECES, "mistral")}  # the file's own rules


@pytest.mark.parametrize("case", CONFIGS | MISTRAL)
def test_a_warning_is_given_exactly_if_texts_become_other_tokens(tmp_path, case):
    kind, config, model_type = (CONFIGS | MISTRAL)[case]
    folder = written(tmp_path / "folder", copy_of(kind), config, model_type)
    file, ours = Tokenizer.from_file(str(folder / "tokenizer.json")), load_tokenizer(str(folder))
    texts = [" a  new day\n", "def f(x):\n    return x\n\n", "isn't 12.5", "e\u0301"]
    ids = [[one.encode(text, add_special_tokens=False).ids for text in texts] for one in (file, ours)]
    assert bool(warnings_of(folder)) == (ids[0] != ids[1])


def test_the_bundled_tokenizer_is_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tokenizer("tiny")
