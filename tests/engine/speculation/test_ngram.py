"""Prompt lookup: what followed the same tokens before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roseinfer.engine.speculation.ngram import NGramProposer
from roseinfer.engine.speculation.verify import verified
from roseinfer.sequence import Sequence


def drafts(text: list[int], num_tokens: int = 3, longest: int = 3, shortest: int = 1) -> list[int]:
    proposer, seq = NGramProposer(num_tokens, longest, shortest), Sequence(text)
    [wish] = proposer.wishes([seq])
    [draft] = proposer.propose([seq], [wish])
    assert len(draft) == wish
    return draft


def test_the_longest_match_and_of_those_the_last_one():
    assert drafts([1, 2, 3, 4, 9, 2, 3, 5, 8, 1, 2, 3]) == [4, 9, 2]  # 1, 2, 3 before 2, 3
    assert drafts([1, 2, 7, 7, 1, 2, 8, 8, 1, 2]) == [8, 8, 1]


def test_none_without_a_match_or_with_a_shorter_one():
    assert drafts([1, 2, 3, 4]) == [] and drafts([5]) == []
    assert drafts([1, 2, 3, 1]) == [2, 3, 1] and drafts([1, 2, 3, 1], shortest=2) == []


def test_past_its_end_a_text_goes_on_repeating_itself():
    assert drafts([5, 1, 2, 1, 2], num_tokens=5) == [1, 2, 1, 2, 1]
    assert drafts([7, 7], num_tokens=4) == [7, 7, 7, 7]


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    shortest=st.integers(1, 3),
    more=st.integers(0, 2),
    num_tokens=st.integers(1, 5),
)
def test_it_is_what_a_search_through_the_text_finds(text, cuts, shortest, more, num_tokens):
    """However often it was asked while the text grew."""
    proposer, seq = NGramProposer(num_tokens, shortest + more, shortest), Sequence(text[:1])
    for token in text[1:]:
        if len(seq) in cuts:
            proposer.wishes([seq])
        seq.append(token)
    [wish] = proposer.wishes([seq])
    assert proposer.propose([seq], [wish]) == [searched(text, num_tokens, shortest + more, shortest)]


def searched(text: list[int], num_tokens: int, longest: int, shortest: int) -> list[int]:
    for size in range(longest, shortest - 1, -1):
        for at in range(len(text) - 1, size - 1, -1):
            if size < len(text) and text[at - size : at] == text[-size:]:
                draft = list(text)
                for i in range(num_tokens):
                    draft.append(draft[at + i])
                return draft[len(text) :]
    return []


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_tokens_hold_up_to_the_first_that_the_draft_did_not_have(draft, data):
    tokens = data.draw(st.lists(st.integers(0, 2), min_size=len(draft) + 1, max_size=len(draft) + 1))
    given = verified(draft, tokens)
    assert given == tokens[: len(given)] and given[:-1] == draft[: len(given) - 1]
    assert len(given) == len(draft) + 1 or given[-1] != draft[len(given) - 1]
