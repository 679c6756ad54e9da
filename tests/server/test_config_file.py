"""--config: the keys of post 002's server, what each does here, and that docs/serving.md has them all."""

from __future__ import annotations

import re

import pytest
import yaml

from roseinfer.cli.commands.serve import check_engine
from roseinfer.cli.main import main
from roseinfer.paths import ROOT
from roseinfer.server.config_file import SECTIONS, read_config
from roseinfer.server.settings import ServerSettings

POST = """
model_config:
    model_name: 'llama_7b'
    max_generate_length: 4096
    end_token: 2
    seq_length: [4096]
    vocab_size: 32000
    prefill_batch_size: [8]
    decode_batch_size: [128]
    zactivate_len: [512, 1024, 2048, 4096]
    model_type: 'dyn'
    seq_type: 'static'
    batch_waiting_time: 0.0
    decode_batch_waiting_time: 0.0
    batching_strategy: 'continuous'
    current_index: False
    page_attention: True
    model_dtype: "DataType.FLOAT32"
    pad_token_id: 0
    backend: 'kbk' # 'ge'
    model_cfg_path: 'configs/llama2/predict_llama2_7b.yaml'
serving_config:
    agent_ports: [16002]
    start_device_id: 0
    server_ip: '127.0.0.1'
    server_port: 8835
pa_config:
    num_blocks: 1024
    block_size: 16
    decode_seq_length: 4096
tokenizer:
    type: LlamaTokenizer
    vocab_file: 'llama2/tokenizer.model'
basic_inputs:
    type: LlamaBasicInputs
extra_inputs:
    type: LlamaExtraInputs
warmup_inputs:
    type: LlamaWarmupInputs
"""


@pytest.fixture
def read(tmp_path):
    def of(text):
        path = tmp_path / "server.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
        return read_config(path)

    return of


def test_the_posts_own_file(read):
    config = read(POST)
    assert config.server == {"served_model_name": "llama_7b", "host": "127.0.0.1", "port": 8835}
    assert config.engine == {
        "max_num_seqs": 128,
        "max_model_len": 4096,
        "max_num_batched_tokens": 8 * 4096,
        "dtype": "float32",
        "num_kvcache_blocks": 1024,
        "block_size": 16,
    }
    assert (config.end_tokens, config.most_new_tokens, config.vocab_size) == ((2,), 4096, 32000)
    assert ServerSettings(**config.server).port == 8835


def test_sections_of_our_own(read):
    config = read(
        {
            "server": {"max_queue": 5, "drain_seconds": 1, "access_log": True},
            "engine": {"quantization": "int8", "seed": 3},
        }
    )
    assert config.server == {"max_queue": 5, "drain_seconds": 1, "access_log": True}
    assert config.engine == {"quantization": "int8", "seed": 3}


def test_own_names_win_over_the_posts(read):
    config = read({"engine": {"max_model_len": 64}, "model_config": {"seq_length": [128], "decode_batch_size": [2, 9]}})
    assert config.engine == {"max_model_len": 64, "max_num_seqs": 9}


WRONG = [
    ("[", "is not YAML"),
    ("", "the file must have keys of model_config"),
    ("[1]", "the file must have keys of model_config"),
    ("models: {}", "unknown key 'models' (nearest: model_config)"),
    ("model_config: 3", "model_config must have keys of"),
    ("model_config: {seq_len: [4]}", "unknown key 'model_config.seq_len' (nearest: model_config.seq_length)"),
    ("model_config: {seq_length: []}", "model_config.seq_length: must be an integer of at least 1, got []"),
    ("model_config: {seq_length: ['a']}", "model_config.seq_length: must be an integer of at least 1, got 'a'"),
    ("model_config: {decode_batch_size: 0}", "model_config.decode_batch_size: must be an integer of at least 1, got 0"),
    ("model_config: {batching_strategy: static}", "model_config.batching_strategy: must be 'continuous', got 'static'"),
    ("model_config: {page_attention: false}", "model_config.page_attention: must be True, got False"),
    ("model_config: {page_attention: 1}", "model_config.page_attention: must be True, got 1"),
    ("model_config: {batch_waiting_time: 0.5}", "model_config.batch_waiting_time: must be 0, got 0.5"),
    ("model_config: {model_dtype: DataType.INT4}", "model_config.model_dtype: must be DataType.FLOAT32"),
    ("model_config: {end_token: x}", "model_config.end_token: must be an integer of at least 0, got 'x'"),
    ("serving_config: {server_port: '8835'}", "serving_config.server_port: must be of type int, got '8835'"),
    ("serving_config: {server_port: true}", "serving_config.server_port: must be of type int, got True"),
    ("server: {max_queue: many}", "server.max_queue: must be of type int, got 'many'"),
    ("server: {max_que: 5}", "unknown key 'server.max_que' (nearest: server.max_queue)"),
    ("server: {access_log: 1}", "server.access_log: must be of type bool, got 1"),
    ("server: {max_queue: true}", "server.max_queue: must be of type int, got True"),
    ("server: {allowed_hosts: rose.example}", "server.allowed_hosts: must be of type list, got 'rose.example'"),
    ("engine: {num_blocks: 5}", "unknown key 'engine.num_blocks' (nearest: engine.num_kvcache_blocks)"),
    ("!!python/object/apply:os.system ['true']", "is not YAML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_file_is_one_line_that_names_the_key(tmp_path, capsys, text, message):
    path = tmp_path / "server.yaml"
    path.write_text(text)
    assert main(["serve", "tiny", "--config", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: --config {path}: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("policy", ["[fcfs]", "null", "3"])
def test_a_policy_that_is_no_name_is_one_line(tmp_path, capsys, policy):
    path = tmp_path / "server.yaml"
    path.write_text(f"engine: {{scheduling_policy: {policy}}}")
    assert main(["serve", "tiny", "--config", str(path), "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: --scheduling-policy: unknown value ") and err.count("\n") == 1


def test_null_is_an_engines_default():
    check_engine("tiny", dict.fromkeys(("dtype", "device", "quantization", "max_model_len")))


def test_every_key_stands_in_the_docs():
    told = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| (.+?) \|$", told, re.MULTILINE))
    for section, keys in SECTIONS.items():
        if section not in ("engine", "server"):
            missing = [key for key in keys if f"{section}.{key}" not in rows]
            assert not missing, f"{section}: {missing}"
    from roseinfer.server.config_file import ConfigFile

    for name, why in rows.items():
        section, _, key = name.partition(".")
        if not key:
            continue  # a field of requests
        apply = SECTIONS[section][key]
        config = ConfigFile()
        if why.startswith("not used: "):
            apply(config, None)
            assert [f"not used: {one}" for one in config.unused] == [why]
