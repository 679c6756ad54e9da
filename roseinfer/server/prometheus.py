"""What /metrics says, under the names that vLLM gives the same numbers. It is read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from .async_engine import AsyncEngine
from .latencies import Histogram

CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("model_name",)


class EngineCollector:
    """The metrics of one engine."""

    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._engine, self._labels = engine, [model_name]

    def collect(self) -> Iterator[Metric]:
        state, latencies, engine = self._engine.state, self._engine.latencies, self._engine
        yield self._gauge("num_requests_running", "Sequences in the running batch.", state.running)
        yield self._gauge("num_requests_waiting", "Sequences that wait to run.", state.waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV pool's blocks in use; 1 is all.", state.pool_usage)
        yield self._counter("num_preemptions", "Preemptions.", state.preemptions)
        yield self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache.", state.asked_tokens)
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", state.found_tokens)
        yield self._counter("prompt_tokens", "Prompt tokens of requests that ended.", latencies.num_prompt_tokens)
        yield self._counter("generation_tokens", "New tokens.", latencies.num_new_tokens)
        yield self._histogram("time_to_first_token_seconds", "From arrival to the first token.", latencies.ttft)
        yield self._histogram("inter_token_latency_seconds", "Between two tokens of a sequence.", latencies.itl)
        yield self._histogram("request_queue_time_seconds", "From arrival to the first step.", latencies.queue)
        yield self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", latencies.e2e)
        ended = CounterMetricFamily(
            "vllm:request_success", "Requests that ended, by reason.", labels=[*LABELS, "finished_reason"]
        )
        for reason, count in sorted(dict(latencies.ended_by).items()):
            ended.add_metric([*self._labels, reason], count)
        yield ended
        yield self._counter("requests_refused", "Requests answered 429.", engine.num_refused, "roseinfer")

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", about, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, about: str, value: float, prefix: str = "vllm") -> Metric:
        family = CounterMetricFamily(f"{prefix}:{name}", about, labels=LABELS)
        family.add_metric(self._labels, value)
        return family

    def _histogram(self, name: str, about: str, values: Histogram) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", about, labels=LABELS)
        family.add_metric(self._labels, values.cumulative(), values.sum)
        return family


def exposition(engine: AsyncEngine, model_name: str) -> bytes:
    registry = CollectorRegistry()
    registry.register(EngineCollector(engine, model_name))
    ProcessCollector(registry=registry)  # memory and processor time, on Linux
    return generate_latest(registry)
