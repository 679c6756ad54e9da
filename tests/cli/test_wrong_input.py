"""Wrong input of each kind: one line that names the flag and what is allowed, exit status 2, and nothing loaded."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace

import pytest

from roseinfer.cli.command import in_flags
from roseinfer.cli.main import main

NO_TEMPLATE = "'tiny' has no chat template (chat_template.jinja, or 'chat_template' in tokenizer_config.json)"
WITHOUT_NETWORK = "'smollm2', 'tiny', 'random:gpt2', local folders and .gguf files work without a network"
NO_MODEL = f"is neither a local folder nor a hub id; {WITHOUT_NETWORK}"
CASES = [
    ("lader", "COMMAND: unknown value 'lader' (nearest: ladder), allowed: doctor, generate, "),
    ("bench ofline", "BENCHMARK: unknown value 'ofline' (nearest: offline)"),
    ("bench offline --batch-sizes 1,x", "--batch-sizes '1,x': must be integers with commas between them, such as 1,8"),
    ("bench offline --prompt-len ,", "--prompt-len ',': must be integers"),
    ("bench offline --dtype float32,int8", "--dtype: unknown value 'int8'"),
    ("bench offline --quantization int8,int2", "--quantization: unknown value 'int2'"),
    ("bench offline --contenders vllm", "--contenders: unknown stage 'vllm'"),
    ("bench offline --contenders=", "--contenders '': must name something"),
    ("bench offline --max-tokens 0", "--max-tokens must be an integer of at least 1, got 0"),
    ("bench offline --batch-sizes 1000000000", "--batch-sizes 1000000000: an engine for so many sequences"),
    ("bench offline --dtype none", "--dtype must name one of float32, bfloat16, float16 if quantization names none"),
    ("bench memory --dtype int8", "--dtype: unknown value 'int8'"),
    ("bench online --contenders vllm", "--contenders: unknown value 'vllm'"),
    ("bench online --prompt-len 9-8", "--prompt-len '9-8': must be a number of tokens, or the least and the most"),
    ("bench online --scale 0", "--scale must be a number above 0, got 0.0"),
    ("bench online --rate fast", "--rate 'fast': must be numbers with commas between them, such as 0.5,2"),
    ("bench online --prompt-len 4096", "prompt_tokens=4096 + output_tokens=16 is 4112 tokens, allowed: max_model_len="),
    ("bench online --max-num-seqs 1000000000", "--max-num-seqs 1000000000: an engine for so many sequences"),
    ("bench chunks --budgets 8", "--budgets must be an integer of at least 9, got 8"),
    ("bench host --batch-sizes 1,1", "--batch-sizes must be a list with each value once, got [1, 1]"),
    ("bench host --max-tokens 3", "--max-tokens must be an integer of at least 4, got 3"),
    ("bench step --batch-sizes 1000000000", "--batch-sizes 1000000000: an engine for so many sequences"),
    ("bench step --model tiny,tiny", "--model must be a list with each value once, got ['tiny', 'tiny']"),
    ("bench step --model random:gpt9", "unknown shape 'random:gpt9'"),
    ("bench step --context 512", "--context must be below 512, the positions of tiny, got 512"),
    ("bench serve --slots 4", "--slots 4: changes nothing without --contenders"),
    ("bench serve --precision int8", "--precision int8: changes nothing without --contenders"),
    ("bench serve --url http://127.0.0.1:9 --port 8835", "--port 8835: changes nothing with --url, which has one"),
    ("bench serve -X 0", "--rate must be a number above 0, got 0.0"),
    ("bench serve -X fast", "-X/--rate: must be a number, got 'fast'"),
    ("bench serve -P 1", "http://127.0.0.1:1: no server with OpenAI's API answers there"),
    ("bench serve --clients 0", "--clients must be an integer of at least 1, got 0"),
    ("bench serve --ttft-ms 0", "--ttft-ms must be a number above 0, got 0.0"),
    ("ladder --dtype float61", "--dtype: unknown value 'float61' (nearest: float16), allowed: float32, "),
    ("ladder --batch-size many", "--batch-size: must be an integer, got 'many'"),
    ("ladder --batch-size 0", "--batch-size must be an integer of at least 1, got 0"),
    ("ladder --max-new-tokens 100000", "--prompt-len 8 + --max-new-tokens 100000 is 100008 tokens, allowed: max_model"),
    ("ladder --model", "--model: expected one argument"),
    ("ladder --model random:nothing", "unknown shape 'random:nothing'"),
    ("ladder --stages=", "--stages '': must name something, leave it out for the default"),
    (
        "ladder --stages s2_prealloc",
        "--stages: unknown stage 's2_prealloc' (nearest: s02_prealloc_gather), allowed: ",
    ),
    ("ladder --device=", "--device '' is not a device"),
    ("ladder --device meta", "--device 'meta': not on this machine, which has: cpu"),
    ("ladder --output nowhere/x.json", "--output nowhere/x.json: must be a file in a folder that exists, and can"),
    ("tensorboard --no-serve --stages=", "--stages '': must name something, leave it out for the default"),
    ("tensorboard --no-serve --device mps", "--device 'mps': not on this machine, which has: cpu"),
    (
        "tensorboard --no-serve --logdir wrong.json/tb",
        "--logdir wrong.json/tb: must be a folder that can be written to (",
    ),
    ("aot --out wrong.json/a", "--out wrong.json/a: must be a folder that can be written to (Not a d"),
    ("aot --module triton", "--module: unknown value 'triton' (nearest: paged_triton), allowed: s07_triton_pag"),
    (
        "reproduce 000 --out wrong.json/a",
        "--out wrong.json/a: must be a folder that can be written to (Not a d",
    ),
    ("slides nowhere.ipynb", "NOTEBOOK nowhere.ipynb: there is no such file"),
    ("slides empty.ipynb --out wrong.json/a", "--out wrong.json/a: must be a folder that can be written to (Not a d"),
    ("generate", "missing: MODEL"),
    ("generate ./nowhere a", "no such folder: './nowhere'"),
    ("generate tiny a --temperature -1", "--temperature must be a number >= 0 (0 is greedy), got -1.0"),
    ("generate tiny a --max-tokens 0", "--max-tokens must be an integer >= 1, got 0"),
    ("generate tiny a --top-p 2", "--top-p must be a number above 0 and at most 1"),
    ("generate tiny a --dtype fp8", "--dtype must be one of float32, float16, bfloat16, auto, got 'fp8'"),
    ("generate tiny a --quantization int7", "--quantization must be one of int8, int4, got 'int7'"),
    ("generate tiny a --seed -1", "--seed must be an integer from 0 to "),
    (
        "generate 'What is a token?'",
        f"'What is a token?' {NO_MODEL}. MODEL comes before PROMPT, such as `roseinfer gen",
    ),
    ("generate 'What is a token?' tiny", f"'What is a token?' {NO_MODEL}. MODEL comes before PROMPT, such as"),
    (
        f"generate '{'Tell me a story. ' * 30}'",
        f"'{'Tell me a story. ' * 5}Tell me a s... {NO_MODEL}. MODEL comes before",
    ),
    ("generate ''", f"'' names no model; {WITHOUT_NETWORK}"),
    ("generate ~no-such-user/model a", "no such folder: '~no-such-user/model'"),
    ("generate folder a", "folder has no model: neither config.json nor a GGUF file"),
    ("generate files", "files is a folder of GGUF files: name one of a.gguf, b.GGUF in it"),
    ("generate tiny a --output nowhere/x.json", "--output nowhere/x.json: must be a file in a folder"),
    ("generate random:gpt2 a", "'random:gpt2' has random weights and no tokenizer; 'tiny' has one"),
    ("chat tiny --chat-template nowhere.jinja", "--chat-template nowhere.jinja: there is no such file"),
    ("chat tiny --chat-template .", "--chat-template .: cannot be read (Is a directory)"),
    ("chat tiny", f"{NO_TEMPLATE}: it only continues texts. Use `roseinfer generate tiny`, or give --chat-template\n"),
    ("chat 'What is a token?'", f"'What is a token?' {NO_MODEL}. chat takes a MODEL and no question: it asks for one"),
    ("chat folder", "folder has no model: neither config.json nor a GGUF file"),
    ("chat random:gpt2", "'random:gpt2' has random weights and no tokenizer; 'tiny' has one"),
    ("trace", "missing: FILE"),
    ("trace FILE --sql a --sql-file b", "--sql-file: not allowed with argument --sql"),
    ("trace FILE --sql-file nowhere.sql", "--sql-file nowhere.sql: there is no such file"),
    ("trace FILE --ops=", "--ops '': must name something, leave it out for the default"),
    ("trace FILE --sql-file=", "--sql-file '': must name something, leave it out for the default"),
    ("bench online --scale 1e300", "--scale 1e+300: must be at most 1000, 1,000,000 requests"),
    ("bench online --scale nan", "--scale must be a number above 0, got nan"),
    ("bench online --requests 99999999999", "--requests must be an integer from 1 to 1,000,000, got 99999999999"),
    ("bench online --rate nan", "--rate must be a number above 0, got nan"),
    ("bench online --trace nosuch --rate 1", "--rate 1: --trace nosuch has its own times"),
    ("bench online --trace nosuch", "--trace nosuch: there is no such file"),
    ("bench online --trace folder", "--trace folder: cannot be read (Is a directory)"),
    ("bench online --trace wrong.json", "wrong.json, line 1: unknown field 'a', allowed: seconds, prompt_len, output"),
    ("bench memory --batch-size 99999999", "--batch-size 99999999: an engine for so many sequences of 72 tokens takes"),
    ("bench host --batch-sizes 8,99999999", "--batch-sizes 99999999: an engine for so many sequences of 42 tokens"),
    ("bench executors --batch-sizes 99999999", "--batch-sizes 99999999: an engine for so many sequences of 72 tok"),
    ("bench chunks --decoding 99999999", "--decoding 99999999: an engine for so many sequences"),
    ("bench memory --prompt-len 5000", "--prompt-len 5000 + --max-tokens 64 is 5064 tokens, allowed: max_model_len="),
    ("simulate --trace nosuch", "--trace nosuch: there is no such file"),
    ("simulate --requests 99999999", "--requests must be an integer from 1 to 1,000,000, got 99999999"),
    ("simulate --replicas 99999999", "--replicas must be an integer from 1 to 4,096, got 99999999"),
    ("simulate --num-blocks 99999999", "--num-blocks must be an integer from 1 to 1,000,000, got 99999999"),
    ("simulate --floor 'H200 SXM' --host-ms nan", "--host-ms must be a number of at least 0, got nan"),
    ("dry-run --num-blocks 8", "missing: --model"),
    ("dry-run --model folder --num-blocks 8", "folder has no model: neither config.json nor a GGUF file"),
    (
        "dry-run --model tiny --num-blocks 8 --dtype auto",
        "--dtype must be one of float32, float16, bfloat16, got 'auto'",
    ),
    ("dry-run --model tiny --num-blocks 8 --speculative -1", '--speculative must be JSON such as \'{"method": "draft'),
    (f"dry-run --model tiny --num-blocks 8 --speculative={'[' * 99_999}", "--speculative must be JSON such as '"),
    ("dry-run --model tiny --num-blocks 0", "--num-blocks must be an integer of at least 1, got 0"),
    ("dry-run --model tiny --num-blocks 8 --max-model-len 9999", "--max-model-len 9999 is more positions than tiny"),
    ("dry-run --model deep --num-blocks 8", "deep: config.json: n_layer must be a positive integer of at most 1,000"),
    ("ladder --model deep --stages s01", "deep: config.json: n_layer must be a positive integer of at most 1,000, got"),
    ("dry-run --model hollow --num-blocks 8", "hollow/config.json cannot be read: Is a directory"),
    ("trace nosuch.json", "FILE 'nosuch.json': there is no such trace file"),
    ("trace folder", "FILE folder: must be a trace, and is a folder"),
    ("trace wrong.json --sql-file folder", "--sql-file folder: cannot be read (Is a directory)"),
    ("slides wrong.json", "NOTEBOOK wrong.json: unknown suffix '.json', allowed: .ipynb"),
    ("slides wrong.ipynb", "NOTEBOOK wrong.ipynb: must be a notebook, and is no JSON of one"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("roseinfer.cli.progress.EVERY_S", 1e6)  # however long a busy machine takes to load a model
    for name in ("folder", "deep", "hollow/config.json"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "files").mkdir()
    for name in ("config.json", "a.gguf", "b.GGUF"):
        (tmp_path / "files" / name).touch()
    for name in ("wrong.json", "wrong.ipynb"):
        (tmp_path / name).write_text('{"a": 1}')
    empty = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "empty.ipynb").write_text(json.dumps(empty))
    sizes = {"n_layer": 99999999, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 32}
    (tmp_path / "deep" / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes}))


@pytest.mark.parametrize(("command", "line"), CASES, ids=[command[:80] for command, _ in CASES])
def test_wrong_input_is_one_line(command, line, folder, capsys):
    assert main(shlex.split(command)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {line}") and err.count("\n") == 1


def test_a_message_names_flags_and_leaves_words_and_limits_alone():
    args = Namespace(prompt_len=8, model="tiny", max_model_len=None, dtype="int8", chat_template=None, top_k=1)
    for message, shown in {
        "prompt_len=9 is more, allowed: max_model_len=8": "--prompt-len 9 is more, allowed: max_model_len=8",
        "a model of that dtype": "a model of that dtype",
        "dtype must be float32": "--dtype must be float32",
        "make prompt_len smaller": "make --prompt-len smaller",
        "precisions: unknown value": "--dtype: unknown value",
        "no template ('chat_template' in a.json): give chat_template": "no template ('chat_template' in a.json): give "
        "--chat-template",
        "tiny: generation_config.json: top_k must be 1": "tiny: generation_config.json: top_k must be 1",
        "--trace x/prompt_len.json": "--trace x/prompt_len.json",
        "--trace prompt_len.json": "--trace prompt_len.json",
    }.items():
        assert in_flags(message, args) == shown
