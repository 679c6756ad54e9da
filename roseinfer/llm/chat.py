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

from .template_worker import READY

Message = dict[str, Any]  # {"role": "user", "content": "..."}
RENDER_SECONDS = 10
MOST_CHARACTERS = 10_000_000


class ChatTemplate:
    """The template of a model: chat_template.jinja, or `chat_template` in tokenizer_config.json.

    transformers reads it, and renders it in its sandbox, in a process that ends when a template takes too long or too
    much memory. Raises ModelLoadError for a folder without a template.
    """

    def __init__(self, spec: str) -> None:
        tokenizer = pretrained_tokenizer(spec)
        if not tokenizer.chat_template:
            raise ModelLoadError(
                f"{spec!r} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "write the prompt yourself and use generate"
            )
        try:
            self._template = tokenizer.get_chat_template()
        except ValueError as e:  # several, and no default one
            raise ModelLoadError(f"{spec!r}: its chat template cannot be read: {' '.join(str(e).split())}") from e
        self._special_tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
        self._renderer = Renderer()

    def render(self, messages: list[Message], add_generation_prompt: bool, continue_final_message: bool) -> str:
        """Return the text of a conversation, with special tokens such as BOS in it: it is encoded as it is.

        add_generation_prompt: end where the assistant begins to answer. continue_final_message: end within the last
        message, for more of it. Raises ValueError for both, for wrong messages, for what the template refuses, and for
        a template that takes more than RENDER_SECONDS or too much memory.
        """
        check_messages(messages)
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "continue_final_message=True goes on with the last message and add_generation_prompt=True begins a new "
                "one: set one of them to False"
            )
        conversation = [{key: value for key, value in one.items() if value is not None} for one in messages]
        answer = self._renderer.answer(
            conversations=[conversation],
            chat_template=self._template,
            special_tokens=self._special_tokens,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        if "error" in answer:
            raise ValueError(f"the chat template refuses these messages: {answer['error']}")
        return answer["text"]


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
            raise ValueError(f"messages must hold what JSON can: {e}") from e
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


def check_messages(messages: object) -> None:
    """Raises ValueError unless it is a conversation."""
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages must be a non-empty list of messages, got {messages!r:.100}")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise ValueError(f"messages[{i}] must be a dict with the texts 'role' and 'content', got {message!r:.100}")
