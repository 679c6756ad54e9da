"""template_text: a chat template that a user gave, as a file or as a text. Without torch, for a quick refusal."""

from __future__ import annotations

from pathlib import Path


def template_text(given: str) -> str:
    """Return a chat template: the text itself where it is Jinja, else the file's. Raises ValueError without one."""
    if "{{" in given or "{%" in given:
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise ValueError(f"chat_template={given}: there is no such file, and Jinja would have {{{{ or {{%") from e
    except (OSError, ValueError) as e:  # ValueError: no UTF-8, or no name of a file
        raise ValueError(f"chat_template={given:.100}: cannot be read ({getattr(e, 'strerror', None) or e})") from e
