"""Texts of requests become tokens in one place, which lets other threads run and names what is wrong with a text."""

from __future__ import annotations

import re
import sys
import threading

import pytest
from tokenizers_of_all_kinds import KINDS, TEXTS, tokenizer_of

from roseinfer.llm.encoding import encode
from roseinfer.paths import ROOT


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_tokenizers_own(kind, special):
    tokenizer = tokenizer_of(kind)
    for text in [*TEXTS, "a", "new day", "<s>a</s> <|end|> né <tool>"]:
        assert encode(text, tokenizer, "it", special) == tokenizer.encode(text, add_special_tokens=special).ids


def test_other_threads_run_meanwhile():
    tokenizer, ran, begin = tokenizer_of("bundled"), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: begin.wait() and ran.set())
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # so that the thread runs only where this one lets go of the GIL
    try:
        begin.set()
        encode("def f(x): return x\n" * 20_000, tokenizer, "it")
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_no_other_code_of_the_engine_encodes():
    paths = [path for part in ("llm", "server", "cli") for path in (ROOT / "roseinfer" / part).rglob("*.py")]
    assert [path.name for path in paths if re.search(r"tokenizer(\(\))?\.encode", path.read_text())] == ["encoding.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "^a prompt must have at least one token, got the text ''$"),
        (" \n", r"^a prompt must have at least one token, got the text ' \\n'$"),
        ("a \udfff", "^a prompt must be Unicode text, character 2 is half of a surrogate$"),
    ],
)
def test_a_text_that_is_no_prompt_is_one_error(text, message):
    with pytest.raises(ValueError, match=message):
        encode(text, tokenizer_of("wordpiece"), "a prompt")
