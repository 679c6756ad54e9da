"""say: sentences that a cell computes from the run above it, so that they are true of every run."""

from __future__ import annotations

from dataclasses import dataclass

from roseinfer.display.view import View, card, inline


@dataclass(frozen=True, repr=False)
class Said(View):
    """Sentences about a run. text/plain names only their subject: nbval compares it, and they may depend on times."""

    about: str
    sentences: tuple[str, ...]

    def __repr__(self) -> str:
        return f"computed from this run: {self.about}"

    def to_html(self) -> str:
        return card("".join(f"<p>{inline(sentence)}</p>" for sentence in self.sentences))


def say(about: str, *sentences: str) -> Said:
    """Show sentences that were computed from times. about: their subject, the same on every machine.

    Raises ValueError if there is no sentence.
    """
    if not sentences:
        raise ValueError("sentences must be at least one, got none")
    return Said(about, sentences)
