"""A simulation makes the very steps that the real engine makes: of the same requests, with the same preemptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clocks import StepClock, UnitCost

from roseinfer.arrivals import at_once, bursts, poisson
from roseinfer.bench.online import serve
from roseinfer.bench.workload import with_prompts
from roseinfer.engine.policies import POLICIES
from roseinfer.simulator import Cluster, EngineSetting
from roseinfer.simulator.measure import real_engine

SIZES = {"prompt_lens": (1, 60), "output_lens": (1, 25), "seed": 5}
ROOMY = {"num_blocks": 64, "block_size": 16, "max_num_seqs": 8, "max_model_len": 512}
SHORT = ROOMY | {"num_blocks": 12}
CASES = {
    "at once": (at_once(20, **SIZES), ROOMY),
    "Poisson": (poisson(20, 0.3, **SIZES), ROOMY),
    "idle in between": (poisson(6, 0.01, **SIZES), ROOMY),
    "bursts, a pool that is short": (bursts(20, 0.5, 5, **SIZES), SHORT),
    "prompts in chunks": (poisson(20, 0.3, **SIZES), ROOMY | {"max_num_batched_tokens": 11}),
    "a prefix, a pool that is short": (poisson(20, 0.5, prefix_len=40, **SIZES), SHORT),
    "a prefix, no cache": (poisson(12, 0.5, prefix_len=40, **SIZES), SHORT | {"enable_prefix_caching": False}),
    **{policy: (at_once(20, **SIZES), SHORT | {"scheduling_policy": policy}) for policy in POLICIES},
}


def noted(scheduler):
    """The scheduler's steps from now on: the number of each request, as they came, and how many of its tokens."""
    schedule, steps = scheduler.schedule, []

    def note():
        step = schedule()
        steps.append([(scheduler._arrivals[seq.seq_id], n) for seq, n in zip(step.seqs, step.num_new, strict=True)])
        return step

    scheduler.schedule = note
    return steps


def stamps(requests):
    return [(times.first_scheduled, [step.finish for step in times.steps], times.ended) for times in requests]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_steps_and_times_are_those_of_the_engine(small, case):
    arrivals, sizes = CASES[case]
    arrivals = [replace(arrival, seconds=round(8 * arrival.seconds) / 8) for arrival in arrivals]  # sums are exact
    setting = EngineSetting(**sizes)
    engine = real_engine(small, setting)
    real_steps = noted(engine.scheduler)
    engine.metrics.clock = clock = StepClock(engine)
    real = serve(engine, with_prompts(arrivals, small), sleep=clock.sleep)

    cluster = Cluster(setting, UnitCost())
    (replica,) = cluster.replicas
    steps = noted(replica.scheduler)
    cluster.run(arrivals)

    assert steps == real_steps and replica.num_steps == len(real.steps)
    assert replica.scheduler.num_preemptions == real.counters["preemptions"]
    assert stamps(request.times for request in cluster.requests) == stamps(real.requests)
    caches = replica.scheduler.blocks.prefix_cache, engine.scheduler.blocks.prefix_cache
    if all(caches):
        assert caches[0].hit_rate == caches[1].hit_rate
        assert ("prefix" in case) == (caches[0].hit_rate > 0.2)
    if "short" in case:
        assert real.counters["preemptions"]
