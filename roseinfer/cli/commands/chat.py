"""Talk with a model in the terminal: it answers each line, and knows what was said before.

Answers appear as they are written. Ctrl-C ends an answer, /new begins a new conversation, and Ctrl-D or /exit ends the
chat. Lines may also come from a pipe; the exit status is then 1 if one of them was not answered. When the conversation
no longer fits the model, its oldest messages are left out.
"""

from __future__ import annotations

import argparse
import signal
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

from roseinfer.arguments import counted
from roseinfer.cli.answering import ModelFlags, Writing, llm_and_params, read_tokenizer, show_as_it_grows
from roseinfer.cli.command import FAILED, Failed
from roseinfer.cli.flags import add_flags
from roseinfer.llm.template_text import template_text
from roseinfer.settings import MODEL

if TYPE_CHECKING:
    from roseinfer.llm.chat import ChatTemplate
    from roseinfer.llm.llm import LLM
    from roseinfer.models import ModelTokenizer
    from roseinfer.sampling_params import SamplingParams

EXAMPLES = (
    "roseinfer chat",
    "roseinfer chat Qwen/Qwen3-0.6B",
    'roseinfer chat ./my-model --system "Answer in one sentence." --temperature 0.7',
    "roseinfer chat tiny --chat-template template.jinja",
)
YOU = ">>> "
HOW_TO_LEAVE = "(Ctrl-D or /exit ends the chat)"
MODEL_ALONE = "chat takes a MODEL and no question: it asks for one when the model is loaded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", metavar="MODEL", help=f"{MODEL}; smollm2 when not given")
    parser.add_argument("--system", metavar="TEXT", help="what the model is told before the first message")
    parser.add_argument(
        "--chat-template", metavar="FILE", help="Jinja in place of the model's own template: a file, or the text itself"
    )
    parser.add_argument("--max-tokens", type=int, help="of one answer; as many as fit when not given")
    add_flags(parser.add_argument, Writing)
    add_flags(parser.add_argument, ModelFlags)


def run(args: argparse.Namespace) -> int:
    template = None if args.chat_template is None else template_text(args.chat_template)
    tokenizer = tokenizer_for(args.model, template)
    renderer = renderer_of(tokenizer, args.model)
    llm, params = llm_and_params(args, tokenizer, max_tokens=args.max_tokens)
    chat = Chat(llm, params, args.system, renderer, template)
    if is_terminal := sys.stdin.isatty():
        print(HOW_TO_LEAVE, file=sys.stderr)
    while (line := next_line()) not in (None, "/exit"):
        if line == "/new":
            chat.begin()
        elif line:
            chat.answer(line)
    if chat.num_tokens:
        speed = f"{chat.num_tokens / chat.seconds:,.0f} tok/s"
        print(f"{counted(chat.num_tokens, 'token')} in {chat.seconds:.1f} s ({speed})", file=sys.stderr)
    return FAILED if chat.num_failed and not is_terminal else 0


def tokenizer_for(model: str, template: str | None) -> ModelTokenizer:
    """Return the model's tokenizer. Raises ValueError where neither it nor the caller has a chat template."""
    tokenizer = read_tokenizer(model, MODEL_ALONE)
    if template is None and not tokenizer.chat_templates:
        raise ValueError(
            f"{model!r} has no chat template ({tokenizer.template_place}): it only continues texts. "
            f"Use `roseinfer generate {model}`, or give --chat-template"
        )
    return tokenizer


def renderer_of(tokenizer: ModelTokenizer, model: str) -> ChatTemplate:
    """Return what renders conversations. Made before the model is loaded: its process starts meanwhile."""
    from roseinfer.llm.chat import ChatTemplate

    return ChatTemplate(tokenizer, repr(model))


class Chat:
    """A conversation: what was said so far, and the next answer."""

    def __init__(
        self, llm: LLM, params: SamplingParams, system: str | None, renderer: ChatTemplate, template: str | None
    ) -> None:
        self.llm, self.params, self.renderer, self.template = llm, params, renderer, template
        self.system = [{"role": "system", "content": system}] if system is not None else []
        self.num_tokens, self.seconds = 0, 0.0  # of all answers, from a question to the end of its answer
        self.num_failed = 0  # lines that were not answered
        self.begin()

    def begin(self) -> None:
        """Begin a new conversation: forget what was said."""
        self.said: list[dict[str, Any]] = []

    def answer(self, line: str) -> None:
        """Show the answer to a line, and keep both, even if the answer was broken off.

        A line that cannot be answered costs a message on stderr, and is forgotten.
        """
        before = list(self.said)
        self.said.append({"role": "user", "content": line})
        began = perf_counter()
        try:
            output = show_as_it_grows(self.llm, self._prompt_ids(), self.params)
        except (ValueError, Failed) as error:
            print(f"error: {error}", file=sys.stderr)
            self.said = before  # also what was left out to make room for the line
            self.num_failed += 1
            return
        self.seconds += perf_counter() - began
        self.num_tokens += len(output.outputs[0].token_ids)
        self.said.append({"role": "assistant", "content": output.outputs[0].text})

    def _prompt_ids(self) -> list[int]:
        """Encode the conversation, without its oldest messages where it is too long.

        Its last message alone may still be too long for the model.
        """
        while True:
            text = self.renderer.render(self.system + self.said, chat_template=self.template)
            token_ids = self.llm.prompt_ids(text, add_special_tokens=False)
            if len(token_ids) < self.llm.max_model_len or len(self.said) == 1:
                return token_ids
            del self.said[:2]  # a question and its answer


def next_line() -> str | None:
    """Read a typed line, without spaces around it; None at the end.

    Ctrl-C clears the line, and a second Ctrl-C ends the program.
    """
    from roseinfer.engine.calls import handled_by

    num_pressed = 0
    with handled_by(signal.default_int_handler):  # the command's own one would count it as the end
        while True:
            try:
                return input(YOU if sys.stdin.isatty() else "").strip()
            except EOFError:
                return None
            except KeyboardInterrupt:
                num_pressed += 1
                if num_pressed > 1:
                    raise
                print(f"\n{HOW_TO_LEAVE}", file=sys.stderr)
