"""The process in which chat templates are rendered: `serve` reads a request a line and writes an answer a line.

A template is a program that comes with a model. The sandbox that transformers renders it in keeps it from Python's
objects, but neither from endless loops nor from texts that fill the memory. A process can be ended within both.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from typing import Any

READY = "ready\n"
MOST_REASON = 1000  # characters of what a template raises
MEMORY_BYTES = 2 * 2**30  # of addresses; the imports take about 0.2 GiB of them


def serve() -> None:
    """Answer requests until stdin ends. A request has the seconds after which it ends this process."""
    from transformers.utils import chat_template_utils  # noqa: F401  # now, so that no request's seconds pay for it

    _limit_memory()
    answers, sys.stdout = sys.stdout, sys.stderr
    nowhere = open(os.devnull, "w")  # noqa: SIM115  # as long as the process
    print(READY, end="", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # A thread of C code, which ends the process even within one long operation. It works on every system.
        faulthandler.dump_traceback_later(request.pop("seconds"), exit=True, file=nowhere)
        answer = _answer(**request)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), file=answers, flush=True)


def _answer(most_characters: int, template_kwargs: dict[str, Any], **settings: Any) -> dict[str, str]:
    """{"text": ...} or {"error": ...}."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        [text], _ = render_jinja_template(**settings, **template_kwargs)
    except Exception as e:  # whatever a template may raise: RecursionError and MemoryError, too
        return {"error": " ".join(str(e).split())[:MOST_REASON] or type(e).__name__}
    if len(text) > most_characters:
        return {"error": f"it renders {len(text)} characters, allowed: at most {most_characters}"}
    return {"text": text}


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (OSError, ValueError):  # macOS refuses a limit below what it has reserved
        return
