"""The chart of a load on a server."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from roseinfer.bench.serving.chart import MOST_DRAWN, serving_chart


def result_of(num_requests):
    samples = [
        {"arrival": at, "chunks": [at + 0.1], "ended": at + 0.2, "how": "complete"} for at in range(num_requests)
    ]
    row = {"complete": num_requests, "cancelled": 0, "refused": 0, "failed": 0}
    arguments = {"model": "m", "rate": 1.0, "seconds": num_requests, "ttft_ms": 500}
    return SimpleNamespace(samples=samples, arguments=arguments, rows=[row])


@pytest.mark.parametrize(("num_requests", "drawn"), [(3, ""), (MOST_DRAWN, ""), (9_000, ", 1 of 5 requests drawn")])
def test_a_long_load_is_drawn_in_part_and_says_so(num_requests, drawn):
    chart = serving_chart(result_of(num_requests))
    assert chart.text.startswith(f"m: 1 requests/s for {num_requests} s{drawn}: ")
    assert max(map(len, chart.spec["datasets"].values())) <= MOST_DRAWN
