"""Checks of the keys of a learner's policy: what a queue can be sorted by, from sequences that are only read."""

from __future__ import annotations

from copy import deepcopy
from numbers import Real
from typing import Any

from roseinfer.engine.policies import Policy
from roseinfer.sequence import SamplingParams, Sequence

from ..exercises.wrong import Wrong


def request(prompt_len: int, max_tokens: int, made: int = 0) -> Sequence:
    """Make a request. made: output tokens that it has already, as a preempted request does."""
    seq = Sequence([1] * prompt_len, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    for _ in range(made):
        seq.append(1)
    return seq


def require_keys(answer: type[Policy]) -> None:
    """Raise Wrong for what is no policy, and for keys that a queue cannot be sorted by, also of preempted sequences."""
    if not (isinstance(answer, type) and issubclass(answer, Policy)):
        raise Wrong(f"expected a subclass of Policy, got {answer!r}")
    policy = answer()
    new = [request(3, 40), request(30, 5), request(9, 9)]
    preempted = [request(3, 40, made=7), request(9, 9, made=8)]
    for seqs, whose in ((new, ""), ([*new, *preempted], " (a preempted sequence is queued again, with its output)")):
        _require_sortable(policy, seqs, whose)


def _require_sortable(policy: Policy, seqs: list[Sequence], whose: str) -> None:
    keys: list[Any] = [_key(policy, seq, whose) for seq in seqs]
    try:
        sorted(keys)
    except TypeError as error:
        raise Wrong(f"keys must be comparable with each other: {error}{whose}") from error
    for seq, before in zip(seqs, keys, strict=True):
        if (after := policy.key(seq)) != before:
            raise Wrong(
                f"key(seq) returned {before!r}, and {after!r} for the same sequence later: the queue is sorted only "
                "once"
            )


def _key(policy: Policy, seq: Sequence, whose: str) -> Any:
    before = deepcopy((seq.token_ids, seq.params))
    key: Any = policy.key(seq)
    if not all(isinstance(part, Real) for part in (key if isinstance(key, tuple) and key else (key,))):
        raise Wrong(f"key(seq) returns {key!r:.100}, expected a number or a tuple of numbers{whose}")
    if (seq.token_ids, seq.params) != before:
        raise Wrong("key(seq) changes the sequence: a policy only reads it")
    return key
