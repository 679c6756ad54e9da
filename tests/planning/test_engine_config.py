"""PlannedEngine and the dry run: wrong fields and wrong arguments are refused in a line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from roseinfer.cli.main import main as roseinfer
from roseinfer.cli.main import parser
from roseinfer.display import Table
from roseinfer.planning import sizes as engine_sizes
from roseinfer.planning.sizes import PlannedEngine

GPT2_SMALL = {"model": "random:gpt2", "num_blocks": 2048}
SMALL_RUN = "--model random:gpt2 --num-blocks 2048"
FIELDS = (
    "num_blocks, block_size, max_num_seqs, max_model_len, max_num_batched_tokens, scheduling_policy, "
    "enable_prefix_caching, enforce_eager, async_scheduling, speculative, model, dtype, quantization, device"
)
FLAGS = (
    "allowed: --model, --num-blocks, --block-size, --max-num-seqs, --max-model-len, --max-num-batched-tokens, "
    "--dtype, --quantization, --device, --speculative"
)


@pytest.fixture
def no_memory_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: None)


# Fields


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("max_num_blocks", "num_blocks"),  # the field of the post's benchmark script
        ("blocksize", "block_size"),
        ("Dtype", "dtype"),
    ],
)
def test_a_misspelt_field_is_refused_with_the_nearest(wrong: str, nearest: str):
    with pytest.raises(ValueError) as caught:
        PlannedEngine(model="tiny", **{wrong: 2048})
    assert str(caught.value) == f"PlannedEngine has no argument {wrong!r} (nearest: {nearest}), allowed: {FIELDS}"


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match="^PlannedEngine needs a value for num_blocks$"):
        PlannedEngine(model="tiny")
    with pytest.raises(ValueError, match="^PlannedEngine needs a value for num_blocks and model$"):
        PlannedEngine()


def test_fields_are_given_by_name_and_stay():
    with pytest.raises(TypeError, match="positional"):
        PlannedEngine("tiny", 8)
    config = PlannedEngine(**GPT2_SMALL)
    with pytest.raises(FrozenInstanceError):
        config.num_blocks = 1
    assert not hasattr(config, "__dict__")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": ""}, "model must be a spec"),
        ({"num_blocks": 0}, "num_blocks must be an integer of at least 1, got 0"),
        ({"block_size": 16.0}, "block_size must be an integer of at least 1, got 16.0"),
        ({"max_num_seqs": "64"}, "max_num_seqs must be an integer of at least 1, got '64'"),
        ({"max_model_len": 0}, "max_model_len must be an integer of at least 1, got 0"),
        ({"dtype": "bf16"}, "dtype must be one of float32, float16, bfloat16, got 'bf16'"),
        ({"dtype": torch.float16}, "dtype must be one of .* got torch.float16"),
        ({"dtype": "int8"}, "dtype must be one of .*, got 'int8': 8-bit weights are quantization='int8'"),
        ({"quantization": "awq"}, "quantization must be one of int8, int4, got 'awq'"),
        ({"quantization": "int8", "device": "cuda"}, "quantization='int8' runs on a CPU, and the model is on 'cuda'"),
        ({"block_size": 48, "device": "cuda"}, "block_size must be a power of two on a GPU, got 48"),
        ({"device": "gpu"}, "device='gpu' is not a device"),
        ({"device": 0}, "device must be a string .* got 0"),
    ],
    ids=lambda value: "-".join(f"{k}-{v}" for k, v in value.items()) if isinstance(value, dict) else "refused",
)
def test_wrong_values_are_refused(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        PlannedEngine(**{**GPT2_SMALL, **wrong})


def test_a_length_above_the_models_is_refused():
    with pytest.raises(ValueError, match="max_model_len=1025 is more positions .* allowed: at most 1024"):
        PlannedEngine(**GPT2_SMALL, max_model_len=1025).sizes()
    assert PlannedEngine(**GPT2_SMALL, max_model_len=1024).sizes().max_model_len == 1024


# The command


def main(arguments: list[str]) -> int:
    return roseinfer(["dry-run", *arguments])


def test_every_field_that_sizes_depend_on_has_a_flag():
    values = {
        "model": "random:gpt2",
        "num_blocks": 3,
        "block_size": 16,
        "max_num_seqs": 2,
        "max_model_len": 99,
        "max_num_batched_tokens": 77,
        "dtype": "float16",
        "quantization": "int8",
        "device": "cuda:1",
        "speculative": '{"method": "ngram"}',
    }
    policies = {"scheduling_policy", "enable_prefix_caching", "enforce_eager", "async_scheduling"}
    assert {*values} == {field.name for field in fields(PlannedEngine)} - policies
    line = [text for name, value in values.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    given = parser().parse_args(["dry-run", *line])
    assert {name: getattr(given, name) for name in values} == values


def test_the_command_prints_the_table(capsys, no_memory_known: None):
    assert main([*SMALL_RUN.split(), "--max-model-len", "65", "--dtype", "bfloat16"]) == 0
    config = PlannedEngine(**GPT2_SMALL, max_model_len=65, dtype="bfloat16")
    assert capsys.readouterr() == (f"{Table.of(config.sizes())}\n", "")


def test_the_command_says_when_it_does_not_fit(capsys, monkeypatch: pytest.MonkeyPatch):
    missing = PlannedEngine(**GPT2_SMALL).sizes().total_bytes - 10**9
    monkeypatch.setattr(engine_sizes, "available_bytes", lambda device: 10**9)
    assert main(SMALL_RUN.split()) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"fits: no: cpu here has 1,000,000,000 bytes free, {missing:,} fewer than the total"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-num-blocks 2048", f"unknown argument '--max-num-blocks' (nearest: --num-blocks), {FLAGS}"),
        ("--model tiny", "missing: --num-blocks"),
        (
            f"{SMALL_RUN} --max-model-len 4096",
            "--max-model-len 4096 is more positions than random:gpt2 has, allowed: at most 1024",
        ),
        ("--model ./nowhere --num-blocks 1", "no such folder: './nowhere'"),
    ],
    ids=["misspelt", "missing", "too-long", "no-folder"],
)
def test_a_bad_argument_is_one_line_and_exit_2(capsys, arguments: str, message: str):
    assert main(arguments.split()) == 2
    assert capsys.readouterr() == ("", f"error: {message}\n")
