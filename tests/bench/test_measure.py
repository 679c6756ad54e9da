"""The interleaving runner: who runs when, samples, progress."""

from __future__ import annotations

from roseinfer.bench.interleave import Run, measure


def recorded_runs(names: str, **arguments: object) -> tuple[list[str], list[dict]]:
    order: list[str] = []

    def contender(name: str):
        def run(on_step) -> Run:
            order.append(name)
            on_step(2, 0.5)
            return Run(1.0, (0.5, 0.25), [[1, 2, 3], [4, 5, 6]])

        return name, run

    return order, measure([contender(name) for name in names], **arguments)


def test_what_processes_of_one_step_wait_for_each_other_is_not_counted():
    contender = ("A", lambda on_step: Run(1.0, (0.5,), [[1, 2]], num_processes=2))
    assert [sample["waited_seconds"] for sample in measure([contender], repeats=2)] == [None, None]


def test_samples_are_raw():
    _, samples = recorded_runs("A", repeats=2, warmup=3)
    waited = [sample.pop("waited_seconds") for sample in samples]
    assert all(seconds is None or seconds >= 0 for seconds in waited)
    assert samples == [
        {
            "name": "A",
            "repeat": repeat,
            "position": 0,
            "tokens": 6,
            "decode_tokens": 4,
            "seconds": 1.75,
            "prefill_seconds": 1.0,
            "decode_seconds": 0.75,
            "step_seconds": [0.5, 0.25],
            "tokens_per_second": 4 / (2 * 0.375),
        }
        for repeat in range(2)
    ]


def test_progress_tells_warm_up_from_timed_runs():
    seen = []
    recorded_runs("AB", repeats=1, warmup=1, on_progress=seen.append)
    assert [(p.phase, p.repeat, p.name, p.tokens, p.seconds, p.finished, p.runs_done) for p in seen] == [
        ("warm-up", -1, "B", 2, 0.5, False, 0),
        ("warm-up", -1, "B", 4, 0.75, True, 1),
        ("warm-up", -1, "A", 2, 0.5, False, 1),
        ("warm-up", -1, "A", 4, 0.75, True, 2),
        ("repeat 1 of 1", 0, "A", 2, 0.5, False, 2),
        ("repeat 1 of 1", 0, "A", 4, 0.75, True, 3),
        ("repeat 1 of 1", 0, "B", 2, 0.5, False, 3),
        ("repeat 1 of 1", 0, "B", 4, 0.75, True, 4),
    ]
    assert {p.runs_total for p in seen} == {4}


def test_a_run_under_way_goes_by_its_median_step_as_a_finished_one_does():
    def run(on_step) -> Run:
        steps = (1.0, 9.0, 3.0)
        for i in range(len(steps)):
            on_step(2 * (i + 1), sum(steps[: i + 1]))
        return Run(1.0, steps, [[1, 2, 3, 4], [5, 6, 7, 8]])

    seen = []
    measure([("A", run)], repeats=1, warmup=0, on_progress=seen.append)
    assert [(p.tokens, p.seconds, p.finished) for p in seen] == [
        (2, 1.0, False),
        (4, 10.0, False),
        (6, 9.0, False),
        (6, 9.0, True),
    ]
