"""Checks of a policy in lesson 17: the request that it picks, refusals, and how long requests take with it."""

from __future__ import annotations

from random import Random
from typing import Any

from roseinfer.arrivals import poisson
from roseinfer.engine.policies import Place, Policy
from roseinfer.sequence import SamplingParams, Sequence
from roseinfer.simulator import EngineSetting
from roseinfer.simulator.metrics import request_times

from ..exercises.policy_keys import request
from ..exercises.wrong import Wrong
from .simulated_run import simulate

SETTING = EngineSetting(num_blocks=512, block_size=16, max_num_seqs=8, max_model_len=512, enable_prefix_caching=False)


def mean_latency(seed: int, policy: str | Policy) -> float:
    """Return the mean number of steps from arrival to last token, in a drawn workload."""
    arrivals = poisson(120, 0.5, prompt_lens=(4, 40), output_lens=(1, 90), seed=seed)
    return request_times(simulate(arrivals, SETTING, policy).requests)["e2e_latency"]["mean"]


def require_rounds(policy: Policy) -> None:
    """Raise Wrong where pick returns no index, or that of a later round or priority, however much room there is."""
    for priorities_and_rounds in ([(0, 0), (0, 0), (0, 1), (0, 1)], [(0, 0), (1, 0), (1, 0)], [(-1, 3), (0, 0)]):
        for outputs in ((60, 40, 20, 3), (3, 20, 40, 60)):
            requests = zip(priorities_and_rounds, PROMPT_LENS, outputs, strict=False)
            waiting = _queue(policy, [(*first, request(prompt_len, n)) for first, prompt_len, n in requests])
            for room in ROOMS:
                _require_first_round(policy, waiting, room)


def _require_first_round(policy: Policy, waiting: list[Place], room: int) -> None:
    given = list(waiting)
    at = policy.pick(given, room)
    where = "" if room == ROOM else f" when free blocks hold {room} tokens"
    if given != waiting:
        raise Wrong(f"pick changes the queue that it is given{where}: expected only an index into it")
    if at not in range(len(waiting)):
        raise Wrong(f"pick returns {at!r} for a queue of {len(waiting)}{where}, expected 0 to {len(waiting) - 1}")
    if waiting[at][:2] != waiting[0][:2]:
        raise Wrong(
            f"pick chooses priority {waiting[at][0]} and round {waiting[at][1]}{where}, while priority "
            f"{waiting[0][0]} and round {waiting[0][1]} are queued: rounds keep a request from starving"
        )


ROOM = 1000  # tokens that free blocks hold, enough for any of these requests
PROMPT_LENS = (9, 9, 5, 5)  # the shorter ones in later rounds
# Plenty; for the shorter prompts alone; for none; then every other, since `pick` may depend on it in any way.
ROOMS = (ROOM, 6, 0, *range(ROOM), 10**6)


def _queue(policy: Policy, places: list[tuple[int, int, Sequence]]) -> list[Place]:
    waiting = [(p, r, policy.key(seq), arrival, seq) for arrival, (p, r, seq) in enumerate(places)]
    return sorted(waiting, key=lambda place: place[:4])


# Beside ignore_eos=True: requests whose length is known, however their tokens are chosen.
KNOWN: tuple[dict[str, Any], ...] = (
    {},
    {"max_tokens": 10**5},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_k": 5},
)
UNKNOWN: tuple[dict[str, Any], ...] = (
    {},
    {"stop_token_ids": (3,), "ignore_eos": True},
    {"stop": "a", "ignore_eos": True},
)


def require_check(policy: Policy) -> None:
    for params in KNOWN:
        try:
            policy.check(SamplingParams(ignore_eos=True, **params))
        except ValueError as error:
            known = _told({"ignore_eos": True, **params})
            raise Wrong(f"check refuses SamplingParams({known}), whose length is known: {error}") from error
    if not (where := _reads_lengths(policy)):
        return
    for params in UNKNOWN:
        try:
            policy.check(SamplingParams(**params))
        except ValueError:
            continue
        raise Wrong(
            f"{where} reads how long an output gets, and check lets SamplingParams({_told(params)}) pass, which may "
            "stop early: expected ValueError"
        )


def _reads_lengths(policy: Policy) -> str:
    """Name the method whose answer changes with the lengths of outputs alone; empty if none does."""
    if any(policy.key(request(5, n)) != policy.key(request(5, 3)) for n in range(4, 400)):
        return "key"
    rng = Random(0)
    for _ in range(50):
        outputs = [rng.randint(1, rng.choice((90, 400))) for _ in range(6)]
        prompts = [rng.randint(4, 40) for _ in outputs]
        picked = []
        for some in (outputs, outputs[::-1]):
            waiting = _queue(policy, [(0, 0, request(p, n)) for p, n in zip(prompts, some, strict=True)])
            picked.append(waiting[policy.pick(waiting, ROOM)][3])
        if picked[0] != picked[1]:
            return "pick"
    return ""


def _told(params: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in params.items())


def why_too_long(policy: Policy) -> str:
    """Return the end of a sentence that gives the reason; empty if it is not known."""
    few, many = policy.key(request(5, 3)), policy.key(request(5, 60))
    short, long = policy.key(request(3, 9)), policy.key(request(30, 9))
    if few > many:
        return ": the longest outputs go first, and all others wait for them"
    if few == many:
        reads = "reads the prompt alone" if short != long else "is the same for all"
        return f": key {reads}, and a request's steps are nearly all for its output"
    return ""
