"""GGUF files that are no model: one line that says why, the same from every command and from Python."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf_writing import write_gguf

from roseinfer import LLM, load_model
from roseinfer.cli.main import main
from roseinfer.models import ModelConfig, ModelLoadError, random_model
from roseinfer.models.rope import Rope

SHAPE = ModelConfig("llama", 128, 32, 1, 2, 2, 16, 64, 64, rope=Rope())
COMMANDS = (
    "generate {} a",
    "chat {}",
    "serve {} --port 0",
    "dry-run --model {} --num-blocks 8",
    "bench offline --model {}",
)
NOT_HERE = "general.architecture='gemma3' is not supported, only llama, qwen2, qwen3, gpt2"
FILES = {
    "folder": "folder is a folder of GGUF files: name one of a.gguf, b.gguf in it",
    "none.gguf": "none.gguf does not exist: a GGUF file is wanted",
    "lora.gguf": "lora.gguf: general.type='adapter': it is no model by itself",
    "tensors-of-a-lora.gguf": "tensors-of-a-lora.gguf: tensor token_embd.weight is missing: it is no language model",
    "mmproj.gguf": "mmproj.gguf: general.type='mmproj': it is no model by itself",
    "gemma.gguf": f"gemma.gguf: {NOT_HERE}",
    "part-00001-of-00002.gguf": "part-00001-of-00002.gguf: it is one of 2 parts, and part-00002-of-00002.gguf is not ",
    "header.gguf": "header.gguf: its header is truncated at byte 900, or not GGUF's",
    "vocabulary.gguf": "vocabulary.gguf: its vocabulary has 128 tokens, and token_embd.weight only 100 rows",
}
CUT = "tensor output_norm.weight ends at byte "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each of FILES, most of them a whole model with a tokenizer, but for what is wrong with it."""
    folder = tmp_path_factory.mktemp("files")
    whole = write_gguf(random_model(SHAPE), folder / "whole.gguf").read_bytes()
    (folder / "folder").mkdir()
    for name in ("folder/a.gguf", "folder/b.gguf", "part-00001-of-00002.gguf"):
        (folder / name).write_bytes(whole)
    (folder / "header.gguf").write_bytes(whole[:900])
    (folder / "tensors.gguf").write_bytes(whole[:-1])
    write_gguf(random_model(SHAPE), folder / "lora.gguf", general__type="adapter")
    write_gguf(random_model(SHAPE), folder / "mmproj.gguf", general__type="mmproj", general__architecture="clip")
    write_gguf(random_model(SHAPE), folder / "gemma.gguf", general__architecture="gemma3")
    fewer_rows = gguf.GGUFReader(folder / "whole.gguf").tensors
    for name, tensors in {
        "tensors-of-a-lora.gguf": {"blk.0.attn_q.weight.lora_a": np.ones((4, 32), np.float32)},
        "vocabulary.gguf": {t.name: t.data[:100] for t in fewer_rows},
    }.items():
        writer = gguf.GGUFWriter(folder / name, "llama")
        writer.add_token_list([f"<{n}>" for n in range(128)])
        for tensor, data in tensors.items():
            writer.add_tensor(tensor, data.copy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder


@pytest.mark.parametrize(("name", "line"), [*FILES.items(), ("tensors.gguf", f"tensors.gguf: {CUT}")])
def test_what_is_no_model_is_one_line_from_everywhere(name, line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    said = set()
    for command in COMMANDS:
        assert main(command.format(name).split()) == 2, command
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        said.add(err.removeprefix("error: ").strip())
    for load in (LLM, load_model):
        with pytest.raises(ModelLoadError) as raised:
            load(name)
        said.add(str(raised.value))
    [one] = said
    assert one.startswith(line)


def test_a_file_without_a_tokenizer_says_so(folder, monkeypatch, capsys, tmp_path):
    whole = gguf.GGUFReader(folder / "whole.gguf")
    writer = gguf.GGUFWriter(tmp_path / "no-words.gguf", "llama")
    for field in whole.fields.values():
        if field.name.startswith("llama."):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS[:2]:
        assert main(command.format("no-words.gguf").split()) == 2
        error = "error: no-words.gguf: its metadata has no tokenizer (tokenizer.ggml.model)\n"
        assert capsys.readouterr() == ("", error)
