"""Conversations as the text that a model was trained on, by the chat template in its folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from typing import Any

from roseinfer.models import ModelLoadError, pretrained_tokenizer

from .messages import Message, template_messages
from .template_worker import READY

RENDER_SECONDS = 10
MOST_CHARACTERS = 10_000_000


class ChatTemplate:
    """The template of a model: chat_template.jinja, or `chat_template` in tokenizer_config.json.

    transformers reads it, and renders it in its sandbox, in a process that ends when a template takes too long or too
    much memory. spec: None for a model without a folder, whose conversations bring their templates.
    """

    def __init__(self, spec: str | None) -> None:
        self._spec = spec
        self._tokenizer = pretrained_tokenizer(spec) if spec else None
        special = self._tokenizer.special_tokens_map if self._tokenizer else {}
        self._special_tokens = {name: str(token) for name, token in special.items()}
        self._renderer = Renderer()

    def render(
        self,
        messages: list[Message],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation, with special tokens such as BOS in it: it is encoded as it is.

        add_generation_prompt: end where the assistant begins to answer. continue_final_message: end within the last
        message, for more of it. tools: JSON schemas of functions. chat_template: in place of the model's own, or the
        name of one of several. chat_template_kwargs: other names that the template reads. Raises ValueError for both
        of the first two, for wrong messages, for what the template refuses, and for a template that takes more than
        RENDER_SECONDS or too much memory; ModelLoadError (a ValueError) for a model without a template.
        """
        conversation = template_messages(messages)
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "continue_final_message=True goes on with the last message and add_generation_prompt=True begins a new "
                "one: set one of them to False"
            )
        check_tools(tools)
        answer = self._renderer.answer(
            conversations=[conversation],
            chat_template=self.source(chat_template, tools),
            tools=tools or None,
            template_kwargs=self._special_tokens | checked_kwargs(chat_template_kwargs),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        if "error" in answer:
            raise ValueError(f"the chat template refuses these messages: {answer['error']}")
        return answer["text"]

    def source(self, chat_template: str | None = None, tools: list[dict[str, Any]] | None = None) -> str:
        """The template as Jinja: the one that was given, else the model's. Raises ModelLoadError for a model without
        one, and ValueError for one that is not a text."""
        if not isinstance(chat_template, str | None):
            raise ValueError(f"chat_template must be a text, got {chat_template!r:.100}")
        tokenizer = self._tokenizer
        if tokenizer is None or not (chat_template or tokenizer.chat_template):
            if chat_template:
                return chat_template
            raise ModelLoadError(
                f"{self._spec!r} has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): write the prompt yourself and use generate, or give chat_template"
            )
        try:
            return tokenizer.get_chat_template(chat_template, tools or None)
        except ValueError as e:  # several, and no default one
            reason = " ".join(str(e).split())
            raise ModelLoadError(f"{self._spec!r}: its chat template cannot be read: {reason}") from e


OWN_ARGUMENTS = ("messages", "conversations", "tools", "chat_template", "add_generation_prompt",
                 "continue_final_message", "return_assistant_tokens_mask")  # fmt: skip


def checked_kwargs(given: dict[str, Any] | None) -> dict[str, Any]:
    """Raises ValueError unless it is a dict of names that no argument has."""
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"chat_template_kwargs must be a dict with names as keys, got {given!r:.100}")
    for name in OWN_ARGUMENTS:
        if name in given:
            raise ValueError(f"chat_template_kwargs has {name!r}, which is set on its own")
    return given


def check_tools(tools: object) -> None:
    """Raises ValueError unless it is None or a list of dicts."""
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise ValueError(f"tools must be a list of dicts such as {{'type': 'function', ...}}, got {tools!r:.100}")


class Renderer:
    """A process with template_worker.py in it. It is started again after a template has ended it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def answer(self, **request: Any) -> dict[str, str]:
        """Return {"text": ...} or {"error": ...} for one request."""
        try:
            line = json.dumps({"seconds": RENDER_SECONDS, "most_characters": MOST_CHARACTERS, **request})
        except (TypeError, ValueError, RecursionError) as e:
            raise ValueError(f"messages, tools and chat_template_kwargs must hold what JSON can: {e}") from e
        with self._lock:
            try:
                answer = self._exchange(line)
            except BaseException:  # Ctrl-C: the next request must not read this one's answer
                self._stop()
                self._start()
                raise
            if answer:
                return json.loads(answer)
            self._stop()
            self._start()
        return {"error": f"it was ended, since it took more than {RENDER_SECONDS} s or too much memory"}

    def _exchange(self, line: str) -> str:
        """Return the worker's answer, or "" if the request has ended the worker."""
        try:
            print(line, file=self._process.stdin, flush=True)
            return self._said.readline()
        except OSError:  # a broken pipe; Windows calls it an invalid argument
            return ""

    def _start(self) -> None:
        # -I: neither the current folder nor PYTHON* variables change what is imported.
        path = [str(folder) for folder in sys.path if folder]
        code = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        code += "from roseinfer.llm.template_worker import serve; serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C is for this process alone
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self._stop = weakref.finalize(self, _end, self._process)
        assert self._process.stdout, "it is a pipe"
        self._said = self._process.stdout
        if self._said.readline() != READY:
            self._stop()
            raise RuntimeError(
                f"the process that renders chat templates did not start: try {sys.executable} -I -c 'import jinja2'"
            )


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()
