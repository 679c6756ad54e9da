"""Private hooks of argparse that the commands' parser overrides: argparse still calls each, and each is needed."""

from __future__ import annotations

import pytest

from roseinfer.cli.command import Help, Parser


@pytest.fixture
def say(capsys):
    """What the parser says to a line: its error, or its help."""

    def say(line: str) -> str:
        parser = Parser(prog="p", description="One.\n\nTwo.")
        parser.add_argument("--kind", choices=("tiny", "large"), help="which one")
        parser.add_argument("--count", type=int, default=3, help="how many")
        try:
            parser.parse_args(line.split())
        except SystemExit:
            return capsys.readouterr().out
        except ValueError as error:
            return str(error)
        raise AssertionError(f"nothing is said to {line}")

    return say


@pytest.mark.parametrize(
    ("owner", "hook", "line", "said"),
    [
        (Parser, "_check_value", "--kind tin", "--kind: unknown value 'tin' (nearest: tiny), allowed: tiny, large"),
        (Parser, "_get_value", "--count many", "--count: must be an integer, got 'many'"),
        (
            Parser,
            "parse_known_args",
            "--coun 3",
            "unknown argument '--coun' (nearest: --count), allowed: --kind, --count",
        ),
        (Help, "_fill_text", "--help", "One.\n\nTwo.\n"),
        (Help, "_get_help_string", "--help", "which one\n"),
    ],
)
def test_a_hook_is_called_and_the_parser_says_less_without_it(say, monkeypatch, owner, hook, line, said):
    assert said in say(line)
    monkeypatch.delattr(owner, hook)
    assert said not in say(line)
