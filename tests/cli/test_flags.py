"""Flags from a dataclass: typed text becomes the fields, and a new field is a flag of every command that has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import pytest

from roseinfer.arrivals import Range
from roseinfer.bench.settings import Offline
from roseinfer.cli.command import Parser
from roseinfer.cli.flags import add_flags, given_fields, refuse_changed, settings_of
from roseinfer.cli.main import parser
from roseinfer.engine.config import EngineConfig
from roseinfer.settings import flag


@dataclass(frozen=True, kw_only=True)
class Settings:
    sizes: Sequence[int] = flag((1, 8), "sizes", metavar="SIZES")
    lens: Range = flag((16, 16), "tokens", name="--token-lens")
    shares: Sequence[float] = flag((), "shares")
    seed: int = flag(7, "seed")


def parsed(line: str):
    own = Parser(prog="p")
    add_flags(own.add_argument, Settings, shares="other words")
    return own, own.parse_args(line.split())


@pytest.mark.parametrize(("line", "expected"), [("", None), ("--on", True), ("--no-on", False)])
def test_a_bool_is_a_pair_of_flags(line, expected):
    @dataclass(frozen=True, kw_only=True)
    class Switch:
        on: bool | None = flag(None, "whether it is on")

    own = Parser(prog="p")
    add_flags(own.add_argument, Switch)
    assert settings_of(Switch, own.parse_args(line.split())).on is expected


@pytest.mark.parametrize("text", ["3-", "-3", "9-3", "x"])
def test_a_range_has_both_ends_or_is_one_number(text):
    _, given = parsed(f"--token-lens={text}")
    with pytest.raises(ValueError, match="must be a number of tokens, or the least and the most"):
        settings_of(Settings, given)


def test_defaults_are_those_of_the_fields():
    own, given = parsed("")
    assert settings_of(Settings, given) == Settings(sizes=[1, 8])
    assert (given.sizes, given.token_lens, given.shares, given.seed) == ("1,8", "16", None, 7)
    assert "shares" not in given_fields(Settings, given)
    assert "sizes (default: 1,8)" in own.format_help() and "other words" in own.format_help()


def test_what_is_typed_becomes_the_fields():
    _, given = parsed("--sizes 2,4 --token-lens 3-9 --shares 0.5 --seed 1")
    settings = settings_of(Settings, given)
    assert settings == Settings(sizes=[2, 4], lens=(3, 9), shares=[0.5], seed=1)


def test_a_list_of_names_may_be_none():
    given = parser().parse_args("bench offline --model a.gguf --dtype none --quantization stored".split())
    assert settings_of(Offline, given).precisions == ["stored"]
    with pytest.raises(ValueError, match="dtypes must name one of .* if quantization names none"):
        settings_of(Offline, parser().parse_args("bench offline --dtype none".split()))


def test_a_flag_that_was_changed_without_effect_is_refused():
    refuse_changed(Settings(seed=1), {"lens": "has no effect"})
    with pytest.raises(ValueError, match="^--token-lens 3-9: has no effect$"):
        refuse_changed(Settings(lens=(3, 9)), {"lens": "has no effect"})


@pytest.mark.parametrize("command", ["dry-run", "simulate"])
def test_every_explained_field_of_the_engine_is_a_flag(command):
    given = parser().parse_args([command])
    assert {own.name for own in fields(EngineConfig) if "help" in own.metadata} <= {*vars(given)}
