"""NGramProposer: prompt lookup. What followed the same tokens earlier in the text may follow them again."""

from __future__ import annotations

from collections import abc

from roseinfer.sequence import Sequence


class NGramProposer:
    """Drafts from the text itself, without a model (prompt lookup decoding: Saxena, 2023; "ngram" in vLLM).

    num_tokens: the length of a draft. longest, shortest: how many of the last tokens are looked up, the longest first.
    """

    def __init__(self, num_tokens: int, longest: int, shortest: int) -> None:
        self.num_tokens, self.sizes = num_tokens, range(longest, shortest - 1, -1)

    def warm_up(self) -> None:
        """Do nothing: there is nothing to make ready."""

    def wishes(self, seqs: abc.Sequence[Sequence]) -> list[int]:
        """Return how many tokens it can draft for each sequence."""
        return [self.num_tokens if self.place(seq) is not None else 0 for seq in seqs]

    def propose(self, seqs: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[list[int]]:
        """Return a draft of most[i] tokens for each of seqs; most[i] is 0 where `wishes` had 0."""
        return [self.draft(seq, n) if n else [] for seq, n in zip(seqs, most, strict=True)]

    def draft(self, seq: Sequence, num_tokens: int) -> list[int]:
        text, at = seq.token_ids, self.place(seq)
        assert at is not None, "it was found a moment ago"
        period = len(text) - at  # past its end the text is taken to go on repeating itself
        return [text[at + i % period] for i in range(num_tokens)]

    def place(self, seq: Sequence) -> int | None:
        """Return where the text goes on after the last earlier place with its last tokens; None for no such place."""
        text, places = seq.token_ids, self._indexed(seq)
        for size in self.sizes:
            if size < len(text) and (at := places.get(tuple(text[-size:]))) is not None:
                return at
        return None

    def _indexed(self, seq: Sequence) -> dict[tuple[int, ...], int]:
        """Return where the text last went on after each n-gram that ends before its last token.

        The sequence keeps this index, so no token is indexed twice.
        """
        text, places = seq.token_ids, seq.ngrams
        for end in range(places.get((), 1), len(text)):
            for size in self.sizes:
                if size <= end:
                    places[tuple(text[end - size : end])] = end
        places[()] = len(text)
        return places
