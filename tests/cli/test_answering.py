"""`roseinfer generate` and `roseinfer chat`: texts as they are written, history, and what Ctrl-C ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roseinfer.cli import progress
from roseinfer.cli.commands import chat
from roseinfer.cli.main import main
from roseinfer.llm.llm import LLM
from roseinfer.models import load_tokenizer
from roseinfer.paths import ROOT
from roseinfer.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes to load the model."""
    monkeypatch.setattr(progress, "EVERY_S", 1e6)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", device="cpu", num_kvcache_blocks=16)


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    return str(tmp_path / "template.jinja")


def typed(monkeypatch: pytest.MonkeyPatch, text: str, on_terminal: bool = False) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: on_terminal)


def text_of(llm: LLM, prompt: str, **wishes) -> str:
    return llm.generate(prompt, SamplingParams(**wishes), use_tqdm=False)[0].outputs[0].text


def test_a_text_goes_on(llm, capsys):
    assert main(["generate", "tiny", "Return a new", "--max-tokens", "9", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out == text_of(llm, "Return a new", max_tokens=9) + "\n"
    assert re.fullmatch(r"9 tokens in \d+\.\d\d s \([\d,]+ tok/s\), ended by: length", err.splitlines()[-1])


def test_at_a_terminal_the_prompt_stands_before_its_text(llm, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["generate", "tiny", "Return a new", "--max-tokens", "1", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out == "Return a new" + text_of(llm, "Return a new", max_tokens=1) + "\n"
    assert err.splitlines()[-1].startswith("1 token in ")


def test_a_prompt_without_a_token_is_refused(capsys):
    assert main(["generate", "tiny", "", "--device", "cpu"]) == 2
    assert capsys.readouterr() == ("", "error: a prompt must have at least one token, got the text ''\n")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_long_wait_says_what_it_is_for(command, capsys, monkeypatch, template):
    """As on a machine that has not compiled the kernels yet."""
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    typed(monkeypatch, "Return a new")
    flags = ["--chat-template", template] if command == "chat" else []
    assert main([command, "tiny", *flags, "--max-tokens", "1", "--device", "cpu"]) == 0
    assert "s  loading tiny; the first run with a kind of model also compiles its kernels\n" in capsys.readouterr().err


@pytest.mark.parametrize("on_terminal", [True, False])
def test_control_characters_are_spelled_out_on_a_terminal_alone(capsys, monkeypatch, on_terminal):
    """A text of escape characters, which the params allow alone."""
    tokenizer = load_tokenizer("tiny")
    [escape] = tokenizer.encode("\x1b").ids
    only = SamplingParams(max_tokens=3, allowed_token_ids=[escape], ignore_eos=True)
    monkeypatch.setattr(LLM, "get_default_sampling_params", lambda self: only)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: on_terminal)
    assert main(["generate", "tiny", "Return", "--max-tokens", "3", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == ("Return" + "\\x1b" * 3 if on_terminal else "\x1b" * 3) + "\n"


def test_a_prompt_may_come_from_a_pipe_and_the_answer_may_go_to_a_file(llm, capsys, monkeypatch, tmp_path):
    typed(monkeypatch, "The optional")
    flags = ["--temperature", "0.8", "--seed", "3", "--stop", "zzz", "--stop", ".", "--top-k", "40"]
    file = tmp_path / "answer.json"
    assert main(["generate", "tiny", "--device", "cpu", *flags, "--output", str(file)]) == 0
    wanted = text_of(llm, "The optional", max_tokens=256, temperature=0.8, seed=3, stop=("zzz", "."), top_k=40)
    written = json.loads(file.read_text())
    assert written["outputs"][0]["text"] + "\n" == capsys.readouterr().out == wanted + "\n"
    assert written["outputs"][0]["finish_reason"] == "stop" and written["prompt"] == "The optional"


def test_at_a_terminal_it_says_that_it_waits_for_a_prompt(llm, capsys, monkeypatch):
    typed(monkeypatch, "The optional", on_terminal=True)
    assert main(["generate", "tiny", "--max-tokens", "1", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("(type the prompt; Ctrl-D") and out == text_of(llm, "The optional", max_tokens=1) + "\n"


def test_a_chat_keeps_what_was_said(llm, capsys, monkeypatch, template):
    typed(monkeypatch, "Return a new\n\n  None  \n/new\nReturn a new\n/exit\nnever read\n")
    flags = ["--chat-template", template, "--system", "Copy", "--max-tokens", "8", "--device", "cpu"]
    assert main(["chat", "tiny", *flags]) == 0
    first = text_of(llm, "Copy\nReturn a new\n", max_tokens=8)
    second = text_of(llm, f"Copy\nReturn a new\n{first}\nNone\n", max_tokens=8)
    assert capsys.readouterr().out == f"{first}\n{second}\n{first}\n"


def test_a_template_may_be_typed_in_place_of_a_file(llm, capsys, monkeypatch):
    typed(monkeypatch, "Return a new\n")
    assert main(["chat", "tiny", "--chat-template", TEMPLATE, "--max-tokens", "4", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == text_of(llm, "Return a new\n", max_tokens=4) + "\n"


def test_a_chat_may_have_a_learners_engine(llm, capsys, monkeypatch, template, tmp_path):
    (tmp_path / "__init__.py").write_text("from stages import TokenBudget as MyEngine\n")
    typed(monkeypatch, "Return a new\n")
    flags = ["--engine", str(tmp_path), "--chat-template", template, "--max-tokens", "4", "--device", "cpu"]
    assert main(["chat", "tiny", *flags]) == 0
    assert capsys.readouterr().out == text_of(llm, "Return a new\n", max_tokens=4) + "\n"


def test_the_oldest_messages_go_when_the_conversation_is_too_long(llm, monkeypatch):
    seen = []
    monkeypatch.setattr(chat, "show_as_it_grows", lambda llm, ids, params: seen.append(ids) or Output("one two"))
    talk = chat.Chat(llm, SamplingParams(), "Copy", llm.chat_template, TEMPLATE)
    monkeypatch.setattr(llm, "max_model_len", 20)
    for line in ("first", "second", "third", "fourth"):
        talk.answer(line)
    texts = [llm.get_tokenizer().decode(ids) for ids in seen]
    assert texts[0] == "Copy\nfirst\n" and all(text.startswith("Copy\n") for text in texts)
    assert all(len(ids) < 20 for ids in seen) and "first" not in texts[-1] and texts[-1].endswith("fourth\n")
    assert [one["role"] for one in talk.said[:2]] == ["user", "assistant"]


def test_a_question_that_is_too_long_leaves_the_conversation_as_it_was(llm, capsys, monkeypatch):
    monkeypatch.setattr(chat, "show_as_it_grows", lambda *given: Output("one two"))
    talk = chat.Chat(llm, SamplingParams(), None, llm.chat_template, TEMPLATE)
    talk.answer("first")
    said = list(talk.said)
    monkeypatch.undo()
    talk.answer("word " * 900)
    assert "error: prompt of " in capsys.readouterr().err and talk.said == said and len(said) == 2


class Output:
    """What show_as_it_grows gives, as far as a chat looks at it."""

    def __init__(self, text: str) -> None:
        self.outputs, self.token_ids = [self], [0]
        self.text = text


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_line_that_cannot_be_answered_is_forgotten_and_fails_a_pipe(llm, capsys, monkeypatch, template, on_terminal):
    typed(monkeypatch, "word " * 900 + "\nReturn a new\n", on_terminal)
    status = main(["chat", "tiny", "--chat-template", template, "--max-tokens", "5", "--device", "cpu"])
    assert status == (0 if on_terminal else 1)
    out, err = capsys.readouterr()
    assert "error: prompt of " in err and "allowed: at most 511" in err
    assert err.startswith(chat.HOW_TO_LEAVE) == on_terminal
    assert out.replace(chat.YOU, "") == text_of(llm, "Return a new\n", max_tokens=5) + "\n"


def test_ctrl_c_ends_an_answer_and_not_the_chat(llm, capsys, monkeypatch, template):
    """Pressed after the third output of the first answer. The part that was shown stays in the conversation."""
    shown = []
    stream = LLM.stream

    def pressing(self, prompt, params):
        for output in stream(self, prompt, params):
            shown.append(output)
            if len(shown) == 3:
                os.kill(os.getpid(), signal.SIGINT)
            yield output

    monkeypatch.setattr(LLM, "stream", pressing)
    typed(monkeypatch, "Return a new\nNone\n")
    assert main(["chat", "tiny", "--chat-template", template, "--max-tokens", "40", "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    first, second = out.splitlines()[0], shown[-1].outputs[0]
    broken_off = next(output.outputs[0] for output in shown if output.outputs[0].finish_reason == "abort")
    assert 3 <= len(broken_off.token_ids) < 9 and broken_off.text == first and second.finish_reason != "abort"
    assert shown[-1].prompt_token_ids == llm.get_tokenizer().encode(f"Return a new\n{first}\nNone\n").ids
    assert "interrupted" not in err


def test_ctrl_c_ends_generate_with_its_status(capsys, monkeypatch):
    stream = LLM.stream

    def pressing(self, prompt, params):
        for at, output in enumerate(stream(self, prompt, params)):
            if not at:
                os.kill(os.getpid(), signal.SIGINT)
            yield output

    monkeypatch.setattr(LLM, "stream", pressing)
    assert main(["generate", "tiny", "Return a new", "--device", "cpu"]) == 130
    out, err = capsys.readouterr()
    assert out.strip() and err.endswith("ended by: abort\ninterrupted\n")


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_twice_leaves(monkeypatch, capsys):
    presses = iter([True, False, True, True])

    def asked(text: str) -> str:
        if next(presses):
            raise KeyboardInterrupt
        return " a line "

    monkeypatch.setattr("builtins.input", asked)
    assert chat.next_line() == "a line" and "Ctrl-D" in capsys.readouterr().err
    with pytest.raises(KeyboardInterrupt):
        chat.next_line()


def test_a_text_comes_as_it_is_written(monkeypatch):
    shown, stream = [], LLM.stream

    class Out(io.StringIO):
        def flush(self):
            shown.append(self.getvalue())

    def noting(self, prompt, params):
        for output in stream(self, prompt, params):
            yield output
            assert shown[-1].endswith(output.outputs[0].text[-1:])  # before the next token is asked for

    monkeypatch.setattr(LLM, "stream", noting)
    monkeypatch.setattr(sys, "stdout", Out())
    assert main(["generate", "tiny", "Return a new", "--max-tokens", "20", "--device", "cpu"]) == 0
    assert len({*shown}) > 10


@pytest.mark.nightly  # the test above sees each text being written, in this process
def test_in_a_process_of_its_own_a_text_comes_as_it_is_written():
    command = [sys.executable, "-m", "roseinfer", "generate", "tiny", "Return a new", "--max-tokens", "200"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(8)  # before the end: what follows is still to come
        rest, err = process.communicate()
    assert process.returncode == 0 and len(rest) > 100 and err.endswith(b"ended by: stop\n")
