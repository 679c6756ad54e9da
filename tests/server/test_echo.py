"""echo, with log-probabilities and without: what lm-eval's loglikelihood asks for, as LLM computes it offline."""

from __future__ import annotations

import threading

import openai
import pytest
from running import DEADLINE

from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow

PROMPTS = ["Return a new", "None", "The optional argument 'display' can be set to 0", "If 日本"]


def added_up(answer, stream):
    """Choices by their index: of a stream, the parts are joined."""
    if not stream:
        return [choice.model_dump() for choice in answer.choices]
    whole = {}
    for chunk in answer:
        for choice in chunk.choices:
            part, before = choice.model_dump(), whole.get(choice.index)
            if before:
                part["text"] = before["text"] + part["text"]
                if part["logprobs"]:
                    part["logprobs"] = {name: before["logprobs"][name] + new for name, new in part["logprobs"].items()}
            whole[choice.index] = part
    return [whole[index] for index in sorted(whole)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_a_prompt_has_its_log_probabilities(client, offline, stream, as_ids, max_tokens):
    prompts = [offline.llm.get_tokenizer().encode(text).ids for text in PROMPTS] if as_ids else PROMPTS
    params = SamplingParams(max_tokens=max(max_tokens, 1), logprobs=2, prompt_logprobs=2)
    outputs = offline.llm.generate(prompts, params, use_tqdm=False)
    answer = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=max_tokens, logprobs=2, echo=True, stream=stream
    )
    for text, output, choice in zip(PROMPTS, outputs, added_up(answer, stream), strict=True):
        [sample] = output.outputs
        new_ids, new = (sample.token_ids, sample.logprobs) if max_tokens else ([], [])
        found, ids = choice["logprobs"], output.prompt_token_ids + new_ids
        at = [*output.prompt_logprobs, *new]
        assert at[0] is None and found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        chosen = [one[token].logprob for token, one in zip(ids[1:], at[1:], strict=True)]
        assert found["token_logprobs"][1:] == pytest.approx(chosen)
        assert [max(top.values()) for top in found["top_logprobs"][1:]] == pytest.approx(
            [max(entry.logprob for entry in one.values()) for one in at[1:]]
        )
        assert len(found["tokens"]) == len(found["text_offset"]) == len(ids)
        for token, place in zip(found["tokens"], found["text_offset"], strict=True):
            is_shown = not token.startswith(("bytes:", "<|"))
            assert not is_shown or choice["text"].startswith(token, place), (token, place)
        assert choice["text"] == text + (sample.text if max_tokens else "")
        assert choice["finish_reason"] == (sample.finish_reason if max_tokens else "length")


def test_special_tokens_of_a_prompt_are_shown_where_they_are_asked_for(client):
    for wish, wanted in ((None, "If"), (True, "If"), (False, "<|endoftext|>If")):
        answer = client.completions.create(
            model="tiny", prompt=[0, 499], max_tokens=0, logprobs=0, echo=True, extra_body={"skip_special_tokens": wish}
        )
        [choice] = answer.choices
        assert choice.text == wanted
        assert choice.logprobs.text_offset == [0, len(wanted) - 2] and choice.logprobs.tokens[0] == "<|endoftext|>"


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_without_log_probabilities_is_text(client, offline, stream):
    answer = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=6, echo=True, stream=stream)
    choices = added_up(answer, stream)
    assert [choice["text"] for choice in choices] == [text + offline.text(text, max_tokens=6) for text in PROMPTS]
    assert {choice["logprobs"] for choice in choices} == {None}


def test_samples_have_the_prompt_each(client, offline):
    wish = {"max_tokens": 6, "temperature": 1.0, "seed": 7, "n": 3}
    answer = client.completions.create(model="tiny", prompt="If", echo=True, logprobs=0, **wish)
    assert [choice.text for choice in answer.choices] == ["If" + text for text in offline.texts("If", **wish)]
    firsts = [choice.logprobs.tokens[0] for choice in answer.choices]
    assert firsts == ["If"] * 3


def test_no_new_token_may_be_asked_for(client, offline):
    answer = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "length")
    given = len(offline.llm.get_tokenizer().encode(PROMPTS[0]).ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (given, 0, given)


def recorded(server, monkeypatch, score=None):
    """The engine's log: "step" and "prompt" in their order. score: in place of what a prompt's are computed by."""
    runner, log = server.llm.engine.runner, []
    launch, compute = runner.launch, score or runner.prompt_logprobs
    monkeypatch.setattr(runner, "launch", lambda step: (log.append("step"), launch(step))[1])
    monkeypatch.setattr(runner, "prompt_logprobs", lambda *given: (log.append("prompt"), compute(*given))[1])
    return log


def test_prompts_are_computed_one_before_each_step(server, client, monkeypatch):
    log = recorded(server, monkeypatch)
    client.completions.create(model="tiny", prompt=PROMPTS * 2, max_tokens=0, logprobs=1, echo=True)
    assert log.count("prompt") == 8 and "prompt,prompt" not in ",".join(log)


def test_a_prompt_that_fails_ends_its_request_alone(server, client, offline, monkeypatch):
    failures = [None, RuntimeError("no memory")]

    def score(token_ids, most):
        failure = failures.pop(0)
        if failure:
            raise failure
        return [None] * len(token_ids)

    recorded(server, monkeypatch, score)
    with pytest.raises(openai.InternalServerError, match="no memory") as failed:
        client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=1, logprobs=1, echo=True)
    assert failed.value.code == "step_failed" and not failures
    server.wait_until_idle()
    answer = client.completions.create(model="tiny", prompt="If", max_tokens=6)
    assert answer.choices[0].text == offline.text("If", max_tokens=6)


def test_prompts_of_a_client_that_has_gone_are_not_computed(server, monkeypatch):
    begun, may_go_on = threading.Event(), threading.Event()

    def score(token_ids, most):
        begun.set()
        assert may_go_on.wait(DEADLINE)
        return [None] * len(token_ids)

    log = recorded(server, monkeypatch, score)
    connection = server.post("/v1/completions", {"prompt": PROMPTS, "max_tokens": 1, "logprobs": 1, "echo": True})
    assert begun.wait(DEADLINE)
    connection.close()
    server.wait_for(lambda: not server.engine.streams)
    may_go_on.set()
    server.wait_until_idle()
    assert log.count("prompt") == 1


def test_a_setting_that_needs_new_tokens_is_refused_in_the_clients_numbers(client):
    with pytest.raises(openai.BadRequestError, match="min_tokens must be at most max_tokens=0, got 2"):
        client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=0, extra_body={"min_tokens": 2})
