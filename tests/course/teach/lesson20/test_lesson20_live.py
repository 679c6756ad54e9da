"""Lesson 20 on a real server: it starts and ends, loads, streams, and what it holds after it was mistreated."""

from __future__ import annotations

import asyncio
import sys

import pytest
from openai import OpenAI

from course import teach
from course.teach.exercises.solutions import solution
from course.teach.lesson20 import server as lesson_server
from course.teach.lesson20.chat_server import ChatServer
from course.teach.lesson20.loads import FORMATS, run_load
from course.teach.lesson20.server import LessonServer, in_a_thread
from roseinfer.bench.contenders import ContenderFailed
from roseinfer.llm.llm import LLM
from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    started = teach.start_server("tiny", max_num_seqs=4, max_queue=3)
    yield started
    started.close()


def test_what_a_notebook_says_of_it(server):
    assert repr(server) == "a server of tiny that answers: 4 requests run, 3 may wait"
    assert server.vocab_size == 2048 and server.state()["running"] == 0


def test_a_load_of_clients_has_whole_answers(server):
    shown = teach.load_clients(server, 1, 3, each=2)
    assert list(shown.loads) == ["1 client", "3 clients"]
    assert repr(shown).count("complete") == 2 and not set(FORMATS) & set(repr(shown).split())
    assert [load.row["complete"] for load in shown.loads.values()] == [2, 6]
    assert all(sum(load.parts.values()) > 0 for load in shown.loads.values())
    assert "text/html" in shown._repr_mimebundle_()


def test_a_load_by_the_clock(server):
    shown = teach.load_rate(server, 4.0)
    assert repr(shown).splitlines()[-1].split() == ["4", "per", "second", "complete"]


def test_an_answer_that_is_refused_ends_a_load(server):
    with pytest.raises(RuntimeError, match="requests did not complete: refused, "):
        run_load(server, 40, rate=4000.0)
    server.wait_until_idle()


def test_it_holds_nothing_after_it_was_mistreated(server):
    rows = teach.break_server(server).df.set_index("what happens")
    assert (rows["blocks free after"] == "all").all()
    assert rows["seen"].tolist() == [
        "the other one: 200, 16 tokens; the slow one: its whole answer",
        "0 running, 0 waiting",
        "0 waiting",
        "400: max_tokns",
        "429, with Retry-After: yes",
    ]


def test_the_next_server_ends_this_one_and_says_why_it_does_not_start(server, monkeypatch):
    first = lesson_server._current[0] if lesson_server._current else server
    code = "raise SystemExit('there is no such model')"
    monkeypatch.setattr(lesson_server, "engine_command", lambda *arguments: lambda port: [sys.executable, "-c", code])
    with pytest.raises(ContenderFailed, match="^the server ended with status .*no such model"):
        teach.start_server("no-such-model")
    assert repr(first).startswith("a server of tiny that has ended")


@pytest.mark.nightly
def test_texts_and_speed_beside_the_engine_offline():
    with_room = LessonServer("tiny", 4, 64)
    try:
        assert repr(teach.prove_served(with_room)).count("24 of 24") == 4
        said = teach.say_server_price(with_room)
        assert repr(said) == "computed from this run: tokens per second with HTTP, and without"
        assert [sentence.split(":")[0] for sentence in said.sentences[1:]] == [
            "Answers that come whole",
            "Answers that come streamed",
        ]
    finally:
        with_room.close()


class Quotes:
    """Stands for the chat template that tiny does not have."""

    def render(self, messages):
        return messages[-1]["content"]


def test_the_official_client_reads_a_learners_server():
    llm = LLM("tiny", max_num_seqs=4)
    params = SamplingParams(max_tokens=24, temperature=0)
    [whole] = llm.generate(["Return the number"], params, use_tqdm=False)
    vars(llm)["chat_template"] = Quotes()
    served = ChatServer(solution("20.1"), llm)
    client = OpenAI(base_url=f"{served.url}/v1", api_key="unused")
    messages = [{"role": "user", "content": "Return the number"}]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=24, stream=True)
    pieces = [chunk.choices[0].delta.content for chunk in answer]
    assert len(pieces) == len(whole.outputs[0].token_ids) > 1 and "".join(pieces) == whole.outputs[0].text


def test_a_coroutine_runs_beside_a_loop_that_runs_already():
    async def inside():
        return in_a_thread(asyncio.sleep(0, "done"))

    assert asyncio.run(inside()) == "done"
