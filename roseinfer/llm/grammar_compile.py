"""compile_grammar: a grammar's text as llguidance's matcher. Without torch, for the process of grammar_worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# llguidance follows rules and references by recursion, in up to 700 bytes of the stack for each character that spells
# them. An overflow would end the process, so the stack has room for the longest text that is taken.
STACK_BYTES = 256 * 2**20  # of addresses: memory is used as far as the recursion goes
LONGEST_REASON = 400  # characters
REASONS = {"NoExtensionBias": "there is no text that follows it"}  # where llguidance has but a name for one

T = TypeVar("T")
_stack_size = threading.Lock()


def compile_grammar(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    """Return a matcher before the first token.

    Raises ValueError for a grammar that is not valid, that no text follows or that is too large.
    """
    return in_deep_stack(lambda: _matcher(tokenizer, text))


def _matcher(tokenizer: LLTokenizer, text: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(tokenizer, text, log_level=0, limits=LLParserLimits(verbose_errors=False))
    matcher.compute_bitmask()  # what fails at the first token fails here
    if matcher.is_error():
        raise ValueError(reason_of(matcher))
    return matcher


def reason_of(matcher: LLMatcher) -> str:
    """Return why a matcher fails. What llguidance adds about its own state begins with a line "<...>"."""
    reason = " ".join(matcher.get_error().split("\n<")[0].split())
    reason = REASONS.get(reason, reason)
    if len(reason) <= LONGEST_REASON:
        return reason
    half = LONGEST_REASON // 2
    return f"{reason[:half]} ... {reason[-half:]}"


def in_deep_stack(call: Callable[[], T]) -> T:
    """Run a call in a thread with STACK_BYTES of stack, and return what it returns or raise what it raises."""
    done: Future[T] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    with _stack_size:  # a setting of the process, for threads that begin now
        before = threading.stack_size(STACK_BYTES)
        try:
            threading.Thread(target=work, name="roseinfer grammar", daemon=True).start()
        finally:
            threading.stack_size(before)
    return done.result()
