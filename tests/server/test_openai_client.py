"""The official `openai` client against the server: every answer is the one that LLM gives offline."""

from __future__ import annotations

import asyncio

import openai
import pytest

from roseinfer.sequence import SamplingParams
from roseinfer.server.params import Defaults

pytestmark = pytest.mark.slow

PROMPTS = ["Return a new", "None", "The optional argument 'display' can be set to 0 to suppress", "If"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_completion_is_the_offline_one(client, offline, prompt):
    answer = client.completions.create(model="tiny", prompt=prompt, max_tokens=20)
    [choice] = answer.choices
    assert choice.text == offline.text(prompt, max_tokens=20)
    assert choice.finish_reason in ("length", "stop")
    given = len(offline.llm.get_tokenizer().encode(prompt).ids)
    assert answer.usage.prompt_tokens == given
    assert answer.usage.total_tokens == given + answer.usage.completion_tokens
    assert answer.object == "text_completion" and answer.model == "tiny" and answer.id.startswith("cmpl-")


def test_a_stream_adds_up_to_the_offline_text(client, offline):
    wanted = offline.text(PROMPTS[0], max_tokens=24, ignore_eos=True)
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt=PROMPTS[0],
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    *texts, last = chunks
    assert "".join(chunk.choices[0].text for chunk in texts) == wanted
    assert [chunk.choices[0].finish_reason for chunk in texts][-1] == "length"
    assert len(texts) > 1 and all(chunk.usage is None for chunk in texts)
    assert last.choices == [] and last.usage.completion_tokens == 24
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_stream_has_no_usage_unasked(client):
    chunks = list(client.completions.create(model="tiny", prompt="If", max_tokens=2, stream=True))
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)


def test_several_prompts_are_choices_in_their_order(client, offline):
    ids = offline.llm.get_tokenizer().encode(PROMPTS[1]).ids
    for prompts in (PROMPTS, [ids, ids[:1]]):
        answer = client.completions.create(model="tiny", prompt=prompts, max_tokens=8)
        assert [choice.index for choice in answer.choices] == list(range(len(prompts)))
        assert [choice.text for choice in answer.choices] == [offline.text(one, max_tokens=8) for one in prompts]
    assert client.completions.create(model="tiny", prompt=ids, max_tokens=8).choices[0].text == offline.text(
        ids, max_tokens=8
    )


@pytest.mark.parametrize("stream", [False, True])
def test_samples_of_a_seed_are_the_offline_ones(client, offline, stream):
    wanted = offline.texts("If", max_tokens=12, temperature=1.0, seed=7, n=3)
    answer = client.completions.create(
        model="tiny", prompt="If", max_tokens=12, temperature=1.0, seed=7, n=3, stream=stream
    )
    texts = ["", "", ""]
    for part in answer if stream else [answer]:
        for choice in part.choices:
            texts[choice.index] += choice.text
    assert texts == wanted and len(set(wanted)) == 3


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_ends_it_and_is_named(client, offline, stream):
    whole = offline.text(PROMPTS[2], max_tokens=40)
    stop = whole[9:12]
    wanted = whole[: whole.index(stop)]
    answer = client.completions.create(model="tiny", prompt=PROMPTS[2], max_tokens=40, stop=[stop, "§"], stream=stream)
    parts = [part.choices[0] for part in (answer if stream else [answer])]
    assert "".join(part.text for part in parts) == wanted
    assert (parts[-1].finish_reason, parts[-1].stop_reason) == ("stop", stop)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_the_offline_ones(client, offline, stream):
    [output] = offline.llm.generate(["If"], SamplingParams(max_tokens=6, logprobs=2), use_tqdm=False)
    [sample] = output.outputs
    answer = client.completions.create(model="tiny", prompt="If", max_tokens=6, logprobs=2, stream=stream)
    parts = [part.choices[0] for part in (answer if stream else [answer])]
    chosen = [value for part in parts for value in part.logprobs.token_logprobs]
    assert chosen == pytest.approx([at[i].logprob for i, at in zip(sample.token_ids, sample.logprobs, strict=True)])
    tokens = [token for part in parts for token in part.logprobs.tokens]
    assert "".join(tokens) == sample.text
    offsets = [offset for part in parts for offset in part.logprobs.text_offset]
    assert offsets == [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert all(len(top) == 2 for part in parts for top in part.logprobs.top_logprobs)


def test_many_at_once_are_each_the_offline_ones(server, offline):
    wishes = [(PROMPTS[i % 4], 4 + i) for i in range(16)]

    async def ask(client, prompt, max_tokens, stream):
        answer = await client.completions.create(model="tiny", prompt=prompt, max_tokens=max_tokens, stream=stream)
        if not stream:
            return answer.choices[0].text
        return "".join([chunk.choices[0].text async for chunk in answer])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused") as client:
            return await asyncio.gather(*(ask(client, *wish, i % 2 == 0) for i, wish in enumerate(wishes)))

    assert asyncio.run(all_of_them()) == [offline.text(prompt, max_tokens=n) for prompt, n in wishes]


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "roseinfer"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4'"):
        client.models.retrieve("gpt-4")


def test_errors_are_the_clients_own_classes(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="gpt-4", prompt="If")
    assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model="tiny", prompt="If", max_tokens=-1)
    assert wrong.value.param == "max_tokens" and wrong.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="tiny.*has no chat template"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "If"}])


def test_a_servers_own_limit_and_end_tokens_are_the_defaults(offline):
    defaults = Defaults(offline.llm, end_tokens=(7,), most_new_tokens=5).params
    assert defaults.max_tokens == 5 and 7 in defaults.stop_token_ids


def test_what_asks_for_nothing_may_be_sent(client, offline):
    answer = client.completions.create(
        model="tiny",
        prompt="If",
        max_tokens=4,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        best_of=1,
        echo=False,
        user="me",
    )
    assert answer.choices[0].text == offline.text("If", max_tokens=4)


# Conversations


MESSAGES = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Return a new"}]


@pytest.mark.parametrize("limit", [{"max_tokens": 9}, {"max_completion_tokens": 9}])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_the_offline_one(chat_client, offline, stream, limit):
    [output] = offline.llm.chat(MESSAGES, SamplingParams(max_tokens=9), use_tqdm=False)
    answer = chat_client.chat.completions.create(model="tiny", messages=MESSAGES, stream=stream, **limit)
    if stream:
        begin, *parts = answer
        assert begin.choices[0].delta.role == "assistant"
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        reason = parts[-1].choices[0].finish_reason
    else:
        text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
        assert answer.usage.prompt_tokens == len(output.prompt_token_ids)
    assert (text, reason) == (output.outputs[0].text, output.outputs[0].finish_reason)


def test_an_answer_without_a_limit_may_fill_the_models_room(chat_client, offline):
    answer = chat_client.chat.completions.create(model="tiny", messages=MESSAGES, extra_body={"ignore_eos": True})
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == offline.llm.max_model_len


def test_log_probabilities_of_an_answer(chat_client, offline):
    [output] = offline.llm.chat(MESSAGES, SamplingParams(max_tokens=3, logprobs=2), use_tqdm=False)
    answer = chat_client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    sample = output.outputs[0]
    assert [one.logprob for one in content] == pytest.approx(
        [at[i].logprob for i, at in zip(sample.token_ids, sample.logprobs, strict=True)]
    )
    assert all(
        len(one.top_logprobs) == 2 and one.top_logprobs[0].logprob >= one.top_logprobs[1].logprob for one in content
    )
    assert all(bytes(one.bytes).decode() == one.token for one in content)


def test_a_message_goes_on(chat_client, offline):
    begun = [*MESSAGES, {"role": "assistant", "content": "The copy"}]
    [output] = offline.llm.chat(
        begun, SamplingParams(max_tokens=5), use_tqdm=False, add_generation_prompt=False, continue_final_message=True
    )
    answer = chat_client.chat.completions.create(
        model="tiny",
        messages=begun,
        max_tokens=5,
        extra_body={"add_generation_prompt": False, "continue_final_message": True},
    )
    assert answer.choices[0].message.content == output.outputs[0].text
