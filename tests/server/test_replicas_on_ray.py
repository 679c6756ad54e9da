"""Two replicas on Ray Serve: streams, affinity, clients that go, a replica that is killed, and the end."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from replica_processes import LONG, WAIT, Cluster, Request, error_of_whole, replicas

from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams

# Ray gives its own agents 15 s to start, and has no setting for that.
pytestmark = [pytest.mark.slow, pytest.mark.alone]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with replicas() as running:
        yield running


def test_the_openai_client_streams_what_the_model_says_offline(cluster):
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="unused", timeout=WAIT)
    chunks = list(client.completions.create(model="tiny", prompt="Return a new", max_tokens=12, stream=True))
    [output] = LLM("tiny").generate(["Return a new"], SamplingParams(max_tokens=12), use_tqdm=False)
    assert "".join(chunk.choices[0].text for chunk in chunks) == output.outputs[0].text
    assert len(chunks) > 1 and chunks[-1].choices[0].finish_reason == "length"


def test_requests_with_the_same_header_go_to_the_same_replica(cluster):
    for replica, affinity in cluster.affinities().items():
        body = {"prompt": "Return a new", "max_tokens": 2}
        assert {cluster.ask("/v1/completions", body, affinity)[0] for _ in range(5)} == {replica}


def test_an_error_is_that_of_the_server(cluster):
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="unused", timeout=WAIT)
    with pytest.raises(openai.NotFoundError, match="there is no model 'large' here"):
        client.completions.create(model="large", prompt="Return")


def test_a_client_that_goes_frees_the_blocks_on_its_replica(cluster):
    replica, affinity = next(iter(cluster.affinities().items()))
    with cluster.open("/v1/completions", LONG, affinity) as answer:
        answer.readline()
        assert answer.headers["x-replica"] == replica

    def state() -> dict:
        return cluster.ask("/live", affinity=affinity)[1]

    cluster.wait_for(lambda: state()["num_requests"] == 0)
    cluster.wait_for(lambda: state()["running"] == 0 and state()["free_blocks"] == state()["blocks"])
    text = cluster.open("/metrics", affinity=affinity).read().decode()
    assert re.search(r'finished_reason="abort".*} 1\.0', text)


def test_a_killed_replica_fails_its_requests_alone_and_comes_back(cluster):
    before = cluster.affinities()
    pid = cluster.replica_pids()[0]
    requests = [Request(cluster, affinity) for affinity in before.values() for _ in range(2)]
    pool = ThreadPoolExecutor()
    whole = [pool.submit(error_of_whole, cluster, affinity) for affinity in before.values()]
    cluster.wait_for(lambda: all(request.has_begun.is_set() for request in requests))
    cluster.wait_for(lambda: all(cluster.ask("/live", affinity=own)[1]["num_requests"] == 3 for own in before.values()))
    os.kill(pid, signal.SIGKILL)
    cluster.wait_for(lambda: all(request.complete is not None for request in requests))
    ended = {(request.replica, request.complete) for request in requests}
    failed = {replica for replica, complete in ended if not complete}
    assert len(ended) == 2 and len(failed) == 1, "all requests of one replica failed, and none of the other"
    lost = [error for one in whole if (error := one.result(WAIT))]
    assert [(error.status_code, error.code, error.type) for error in lost] == [(500, "replica_lost", "server_error")]
    _, answer = cluster.ask("/v1/completions", {"prompt": "Return a new", "max_tokens": 2})
    assert answer["usage"]["completion_tokens"] == 2, "the other one goes on"
    cluster.wait_to_say("2 of 2 replicas run again, after ")
    assert len(set(cluster.affinities()) - failed) == 2 and pid not in cluster.replica_pids()
    print(re.search("2 of 2 replicas run again, .*", cluster.said)[0])


def test_sigterm_lets_a_stream_end_and_leaves_nothing_behind(cluster):
    request = Request(cluster, "any")
    cluster.wait_for(request.has_begun.is_set)
    started = cluster.processes()
    assert len(cluster.replica_pids()) == 2 < len(started)
    cluster.process.send_signal(signal.SIGTERM)
    assert cluster.process.wait(WAIT) == 0
    cluster.wait_for(lambda: request.complete is not None)
    assert request.complete, "the stream was cut"
    cluster.wait_for(lambda: not cluster.processes())
    assert not list(cluster.folder.glob("roseinfer-ray-*")) and "every replica has ended" in cluster.said


def test_no_line_on_the_terminal_is_rays(cluster):
    """After a replica was killed and all was ended. stdout is where Ray prints of processes that have died."""
    assert cluster.process.poll() == 0 and cluster.printed == ""
    own = (
        r"http://|ready after|a page to try|or from a terminal|\d of 2 replicas run|draining: |every replica has ended"
    )
    assert [line for line in cluster.said.splitlines() if not re.match(own, line)] == []
