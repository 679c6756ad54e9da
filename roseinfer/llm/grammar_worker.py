"""The process in which a client's grammar is compiled once to see that it can be: that may take hours and gigabytes,
and the library's own limits bound neither."""

from __future__ import annotations

from . import worker
from .deep_stack import in_deep_stack


def serve() -> None:
    """See worker.serve."""
    import llguidance  # noqa: F401  # now, so that no request's seconds pay for it

    worker.serve(compiled)


def compiled(text: str) -> dict[str, str]:
    """Compile a grammar over bytes, which takes about as long as over the tokens of a model. What is wrong with it is
    found again, and told, when it is compiled for those."""
    from llguidance import LLMatcher, LLTokenizer

    in_deep_stack(lambda: LLMatcher(LLTokenizer("byte"), text, log_level=0))
    return {}
