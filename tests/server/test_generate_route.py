"""/generate, the form of post 002's server; /health, /metrics and /live."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", ["/generate", "/models/tiny/generate"])
def test_it_is_the_offline_text(server, offline, path):
    body = {"inputs": "Return a new", "parameters": {"max_new_tokens": 12}}
    status, answer = server.ask(path, body)
    wanted = offline.text("Return a new", max_tokens=12)
    assert (status, answer["generated_text"]) == (200, wanted)
    assert answer["details"]["finish_reason"] == "length" and answer["details"]["generated_tokens"] == 12
    body["parameters"]["return_full_text"] = True
    assert server.ask(path, body)[1]["generated_text"] == "Return a new" + wanted


def test_a_seed_is_a_seed(server, offline):
    wanted = offline.text("If", max_tokens=9, temperature=1.0, seed=3)
    body = {"inputs": "If", "parameters": {"max_new_tokens": 9, "do_sample": True, "seed": 3}}
    assert server.ask("/generate", body)[1]["generated_text"] == wanted
    body["parameters"]["do_sample"] = False
    assert server.ask("/generate", body)[1]["generated_text"] == offline.text("If", max_tokens=9)


def test_a_streams_last_event_has_the_whole_text(server, offline):
    body = {"inputs": "If", "parameters": {"max_new_tokens": 9}, "stream": True}
    status, text, headers = server.exchange("/generate", body)
    events = [json.loads(part.removeprefix("data: ")) for part in text.strip().split("\n\n")]
    wanted = offline.text("If", max_tokens=9)
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    assert "".join(event["text"] for event in events) == wanted
    assert [event["generated_text"] for event in events] == [None] * (len(events) - 1) + [wanted]


def test_metrics_have_vllms_names_and_count(server):
    def metrics():
        _, text, headers = server.exchange("/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        found = {}
        families = [one for one in text_string_to_metric_families(text) if not one.name.startswith("process_")]
        for family in families:  # process_*: memory and processor time, which belong to no model
            for sample in family.samples:
                assert sample.labels["model_name"] == "tiny"
                found[sample.name, sample.labels.get("le"), sample.labels.get("finished_reason")] = sample.value
        return found

    server.wait_until_idle()
    before = metrics()
    server.ask("/v1/completions", {"prompt": "Return a new", "max_tokens": 5, "ignore_eos": True})
    server.wait_until_idle()
    after = metrics()

    def more(name, le=None, reason=None):
        return after[name, le, reason] - before.get((name, le, reason), 0)

    assert more("vllm:generation_tokens_total") == 5
    assert more("vllm:prompt_tokens_total") == len(server.llm.get_tokenizer().encode("Return a new").ids)
    assert more("vllm:request_success_total", reason="length") == 1
    assert more("vllm:time_to_first_token_seconds_count") == 1
    assert more("vllm:inter_token_latency_seconds_count") == 4
    assert more("vllm:inter_token_latency_seconds_bucket", le="+Inf") == 4
    assert more("vllm:e2e_request_latency_seconds_count") == more("vllm:request_queue_time_seconds_count") == 1
    assert after["vllm:num_requests_running", None, None] == after["vllm:num_requests_waiting", None, None] == 0
    assert after["vllm:kv_cache_usage_perc", None, None] == 0
    assert {name for name, *_ in after} >= {"vllm:prefix_cache_hits_total", "vllm:num_preemptions_total"}


def test_the_live_view_shows_what_runs(server):
    status, view = server.ask("/live")
    blocks = server.llm.engine.blocks
    assert status == 200 and view["status"] == "ready"
    assert (view["running"], view["waiting"], view["blocks"]) == (0, 0, blocks.num_blocks)
    assert view["free_blocks"] == blocks.num_blocks and view["requests"] == []
    assert view["itl_ms"]["p50"] <= view["itl_ms"]["p99"]
