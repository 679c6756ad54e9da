"""Settings of benchmarks: what is refused, in the words of the field, and what a record has of them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from roseinfer.bench.settings import (
    Chunks,
    DecodeStep,
    Drafts,
    Eager,
    Executors,
    Host,
    Kernels,
    Ladder,
    Memory,
    Offline,
    Online,
    Serve,
    Workload,
)
from roseinfer.settings import NATURAL, POSITIVE, SIZES, Settings

WRONG_LISTS = {"Sequence[int]": [(4, "a list with each value once, got 4")]}
ALL = (Ladder, Offline, Online, Chunks, Memory, Host, Executors, Drafts, Eager, DecodeStep, Kernels, Serve)


@pytest.mark.parametrize("settings", ALL)
def test_defaults_are_right_and_a_record_is_json(settings: type[Settings]):
    record = json.loads(json.dumps(settings().record()))
    told = {own.name for own in fields(settings)}
    assert settings is Serve or told <= record.keys()
    assert record.get("device") in (None, "cpu", "cuda")


def test_a_record_tells_no_key_and_only_what_its_kind_of_load_has():
    one = Serve(api_key="secret", folder=Path("x")).record()
    several = Serve(contenders=["engine"]).record()
    assert "secret" not in str(one) and "folder" not in one and "slots" not in one and one["stream"] is True
    assert "url" not in several and several["slots"] == 8


def test_the_precisions_of_an_offline_race():
    assert Offline(dtypes=["bfloat16"], quantization=["int4"]).record()["precisions"] == ["bfloat16", "int4"]


def test_the_share_of_the_requests_that_runs():
    assert [Online(num_requests=40, scale=scale).record()["num_requests"] for scale in (1, 0.1, 0.001)] == [40, 4, 1]


@pytest.mark.parametrize("settings", (*ALL, Workload))
def test_every_count_and_every_list_of_sizes_is_checked(settings: type[Settings]):
    wrong = {NATURAL: [(-1, "at least 0, got -1")], POSITIVE: [(0, "at least 1, got 0"), (True, "got True")]}
    wrong |= {SIZES: [([0], "at least 1, got 0"), ([], "each value once"), ([8, 8], "each value once")]}
    checks = {own.name: own.metadata.get("check") for own in fields(settings) if own.type in ("int", "Sequence[int]")}
    assert {name for name, check in checks.items() if not check} == ({"port", "seed"} if settings is Serve else set())
    assert {name for name, check in checks.items() if check is NATURAL} <= {"seed", "prefix_len"}
    for own in fields(settings):
        if own.default is not None:
            with pytest.raises(ValueError, match=f"^{own.name} must have a value, got None"):
                settings(**{own.name: None})
        for value, message in [*wrong.get(own.metadata.get("check"), ()), *WRONG_LISTS.get(str(own.type), ())]:
            with pytest.raises(ValueError, match=f"^{own.name} must be .*{message}"):
                settings(**{own.name: value})


@pytest.mark.parametrize(
    ("settings", "changed", "message"),
    [
        (Ladder, {"max_new_tokens": 1}, "max_new_tokens must be an integer of at least 2, got 1"),
        (Ladder, {"hf_caches": ["sliding"]}, "hf_caches: unknown value 'sliding' .*allowed: dynamic, static$"),
        (Offline, {"dtypes": []}, "dtypes must name one of float32, .* if quantization names none"),
        (Workload, {"prompt_lens": (3, 2)}, r"prompt_lens must be .*got \(3, 2\)"),
        (Workload, {"output_lens": 5}, "output_lens must be .*got 5"),
        (Online, {"contenders": []}, "contenders must be a list with each value once"),
        (Online, {"loads": [-1.0]}, "loads must be a number above 0, got -1.0"),
        (Online, {"trace": Path("t"), "loads": [0.5]}, "loads=0.5: trace=t has its own times"),
        (Memory, {"quantization": "int3"}, "quantization: unknown value 'int3'"),
        (Serve, {"prompt_len": (3, 2)}, r"prompt_len must be .*got \(3, 2\)"),
    ],
)
def test_a_bad_value_is_refused(settings: type[Settings], changed: dict, message: str):
    with pytest.raises(ValueError, match=message):
        settings(**changed)
