"""What lesson 17 asks of a policy: keys that a queue can be sorted by, refusals, and how long requests take with it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from roseinfer.arrivals import Arrival, poisson
from roseinfer.engine.policies import Policy
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.simulator import Cluster, EngineSetting, StepWork
from roseinfer.simulator.metrics import request_times

from .exercise import Wrong

SETTING = EngineSetting(512, block_size=16, max_num_seqs=8, max_model_len=512, enable_prefix_caching=False)


class StepCost:
    """Every step lasts 1."""

    about = "every step lasts 1"

    def seconds(self, work: StepWork) -> tuple[float, float]:
        return 0.0, 1.0

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "steps"}


@cache
def _arrivals(seed: int) -> tuple[Arrival, ...]:
    return tuple(poisson(120, 0.5, prompt_lens=(4, 40), output_lens=(1, 90), seed=seed))


def mean_latency(seed: int, policy: str | Policy) -> float:
    """Steps from arrival to last token, in a drawn workload."""
    cluster = Cluster(replace(SETTING, scheduling_policy=policy), StepCost())
    cluster.run(list(_arrivals(seed)))
    return request_times(cluster.requests)["e2e_latency"]["mean"]


def _request(prompt_len: int, max_tokens: int) -> Sequence:
    return Sequence([1] * prompt_len, SamplingParams(max_tokens=max_tokens, ignore_eos=True))


def require_keys(policy: Policy) -> None:
    seqs = [_request(3, 40), _request(30, 5), _request(9, 9)]
    keys = [policy.key(seq) for seq in seqs]
    if any(key is None for key in keys):
        raise Wrong("key(seq) gives None: it has to return what the queue is sorted by")
    try:
        sorted(keys)
    except TypeError as error:
        raise Wrong(f"keys must be comparable with each other: {error}") from error
    for seq, before in zip(seqs, keys, strict=True):
        if (after := policy.key(seq)) != before:
            raise Wrong(
                f"key(seq) gave {before!r}, and {after!r} for the same sequence later: the queue is sorted once, and "
                "would not find it again"
            )


def require_check(policy: Policy) -> None:
    try:
        policy.check(SamplingParams(ignore_eos=True))
    except ValueError as error:
        raise Wrong(f"check refuses a request with ignore_eos=True, whose length is known: {error}") from error
    if policy.key(_request(5, 3)) == policy.key(_request(5, 60)):
        return
    for params in ({}, {"stop_token_ids": (3,), "ignore_eos": True}, {"stop": "a", "ignore_eos": True}):
        try:
            policy.check(SamplingParams(**params))
        except ValueError:
            continue
        raise Wrong(
            f"key reads how long an output gets, and check lets SamplingParams({_told(params)}) pass, which may stop "
            "early: raise ValueError"
        )


def _told(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in params.items())


def why_too_long(policy: Policy) -> str:
    """The end of a sentence that says so; empty where nothing is known."""
    few, many = policy.key(_request(5, 3)), policy.key(_request(5, 60))
    short, long = policy.key(_request(3, 9)), policy.key(_request(30, 9))
    if few > many:
        return ": the longest outputs go first, and all others wait for them"
    if few == many:
        reads = "reads the prompt alone" if short != long else "is the same for all"
        return f": key {reads}, and a request's steps are nearly all for its output"
    return ""
