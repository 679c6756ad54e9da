"""Checks of a policy in lesson 17: the request that it picks, refusals, and how long requests take with it."""

from __future__ import annotations

from random import Random
from typing import Any

from roseinfer.arrivals import poisson
from roseinfer.engine.policies import Place, Policy
from roseinfer.sequence import SamplingParams
from roseinfer.simulator import EngineSetting
from roseinfer.simulator.metrics import request_times

from ..exercises.drawn import draw, inputs, require_all
from ..exercises.wrong import Wrong
from .policy_keys import request
from .simulated_run import simulate

SETTING = EngineSetting(num_blocks=512, block_size=16, max_num_seqs=8, max_model_len=512, enable_prefix_caching=False)
GAIN = 0.1  # of first come's mean latency
Queue = list[tuple[int, int, int, int]]  # of each request: priority, round, prompt_len, max_tokens


def _draw_queue(rng: Random) -> tuple[Queue, int]:
    """Draw a queue, and how many tokens free blocks hold: for none of its prompts, for some or for all."""
    most = rng.choice((9, 90, 400))
    queue = [
        (rng.choice((-1, 0, 0)), rng.choice((0, 0, 3)), rng.randint(1, 40), rng.randint(1, most))
        for _ in range(rng.randint(2, 6))
    ]
    return queue, rng.choice((0, rng.randint(1, 40), rng.randint(1, 40), rng.randint(100, 10**4)))


QUEUES = draw(_draw_queue, 300)


def _waiting(policy: Policy, queue: Queue) -> list[Place]:
    seqs = [request(prompt_len, max_tokens) for _, _, prompt_len, max_tokens in queue]
    return sorted((*queue[i][:2], policy.key(seq), i, seq) for i, seq in enumerate(seqs))


def require_rounds(policy: Policy) -> None:
    """Raise Wrong where pick returns no index, or that of a later round or priority, however much room there is."""

    def judge(queue: Queue, room: int) -> str | None:
        waiting = _waiting(policy, queue)
        given = list(waiting)
        at = policy.pick(given, room)
        if given != waiting:
            return "pick changes the queue that it is given: expected only an index into it"
        if at not in (may_go := [i for i, place in enumerate(waiting) if place[:2] == waiting[0][:2]]):
            return f"pick returns {at!r}, expected one of {may_go}: others wait in a later round or priority"
        return None

    require_all(QUEUES, judge, inputs("queue of (priority, round, prompt_len, max_tokens)", "room"))


def _reads_lengths(policy: Policy) -> bool:
    """Decide whether a key, or what is picked, changes with the lengths of outputs alone."""

    def choice(queue: Queue, room: int) -> tuple[list[Any], int]:
        waiting = _waiting(policy, queue)
        return sorted((at, key) for _, _, key, at, _ in waiting), waiting[policy.pick(waiting, room)][3]

    others = [([(*one[:3], 401 - one[3]) for one in queue], room) for queue, room in QUEUES]
    return any(choice(*case) != choice(*other) for case, other in zip(QUEUES, others, strict=True))


KNOWN: list[dict[str, Any]] = [
    {"ignore_eos": True},
    {"ignore_eos": True, "max_tokens": 10**5, "min_tokens": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 5},
]
UNKNOWN: list[dict[str, Any]] = [{}, {"stop_token_ids": (3,), "ignore_eos": True}, {"stop": "a", "ignore_eos": True}]


def _said(params: dict[str, Any]) -> str:
    return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value in params.items())})"


def require_check(policy: Policy) -> None:
    """Raise Wrong where check refuses a known length, or lets an unknown one pass that the policy reads."""
    for params in KNOWN:
        try:
            policy.check(SamplingParams(**params))
        except ValueError as error:
            raise Wrong(f"check refuses {_said(params)}, whose length is known: {error}") from error
    for params in UNKNOWN if _reads_lengths(policy) else ():
        try:
            policy.check(SamplingParams(**params))
        except ValueError:
            continue
        raise Wrong(
            f"key or pick reads how long an output gets, and check lets {_said(params)} pass, which may stop early: "
            "expected ValueError"
        )


def _mean_latency(seed: int, policy: str | Policy) -> float:
    """Return the mean number of steps from arrival to last token, in a drawn workload."""
    arrivals = poisson(120, 0.5, prompt_lens=(4, 40), output_lens=(1, 90), seed=seed)
    return request_times(simulate(arrivals, SETTING, policy).requests)["e2e_latency"]["mean"]


def require_gain(policy: type[Policy]) -> None:
    """Raise Wrong about a workload in which requests take nearly as long as with first come, first served."""
    few, many = (policy().key(request(5, max_tokens)) for max_tokens in (3, 60))
    why = ": the longest outputs go first, and all others wait for them" if few > many else ""
    if few == many:
        why = ": key is the same for short and long outputs, and a request's steps are nearly all for its output"
    for seed in range(4):
        found, first_come = (_mean_latency(seed, p) for p in (policy(), "fcfs"))
        if found > (most := (1 - GAIN) * first_come):
            raise Wrong(
                f"workload {seed}: a mean of {found:.1f} steps from arrival to last token, expected at most "
                f"{most:.1f}; first come, first served has {first_come:.1f}{why}"
            )
