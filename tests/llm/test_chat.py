"""LLM.chat: the prompt is transformers' own for the same folder, BOS stands there once, wrong messages are refused."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from served import TOKENIZER, copied
from tiers import in_every_run
from tokenizers import Tokenizer, processors

from roseinfer.llm.chat import ChatTemplate
from roseinfer.llm.llm import LLM
from roseinfer.llm.worker import Worker
from roseinfer.parallel.process import ProcessEnded
from roseinfer.paths import TINY
from roseinfer.sequence import SamplingParams

pytestmark = pytest.mark.slow


TEMPLATE = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role not in ('system', 'user', 'assistant') %}
        {{- raise_exception('Only system, user and assistant speak,\n not ' + message.role) }}
    {%- endif %}
    {{- '[' + message.role + '] ' + message.content | trim + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"""
HELLO = [{"role": "user", "content": "Return a new"}]
ANSWERED = [*HELLO, {"role": "assistant", "content": "The copy"}]
PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


def folder_with(path: Path, template: str | None, as_file: bool = False) -> Path:
    """The bundled model, whose tokenizer puts BOS before each text, as Llama's does, with a chat template."""
    path.mkdir()
    tokenizer = Tokenizer.from_file(str(copied(path) / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing("<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    tokenizer.save(str(path / "tokenizer.json"))
    if template and as_file:
        (path / "chat_template.jinja").write_text(template)
    elif template:
        config = json.loads((TINY / "tokenizer_config.json").read_text()) | {"chat_template": template}
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """All tests render in one process: to start one takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roseinfer.llm.chat.Worker", cache(Worker))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("chat") / "model", TEMPLATE)


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), device="cpu", num_kvcache_blocks=16)


@pytest.mark.parametrize(
    ("messages", "settings"),
    [
        (HELLO, {}),
        (ANSWERED, {"add_generation_prompt": False}),
        (ANSWERED, {"add_generation_prompt": False, "continue_final_message": True}),
        ([{"role": "system", "content": " Be brief é😀 "}, *ANSWERED], {}),
    ],
    ids=["question", "closed", "continued", "system"],
)
def test_the_prompt_is_transformers_own(llm, folder, messages, settings):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(messages, return_dict=False, **{"add_generation_prompt": True, **settings})
    [output] = llm.chat(messages, PARAMS, **settings)
    assert output.prompt_token_ids == wanted and output.prompt_token_ids.count(0) == 1
    assert output.prompt == theirs.apply_chat_template(
        messages, tokenize=False, **{"add_generation_prompt": True, **settings}
    )
    assert output.prompt.startswith("<|endoftext|>[") and len(output.outputs[0].token_ids) == 4
    [same] = llm.generate(wanted, PARAMS)
    assert same.outputs == output.outputs


def test_a_text_has_its_bos_from_the_tokenizer(llm):
    [output] = llm.generate("Return a new", PARAMS)
    assert output.prompt_token_ids[0] == 0 and output.prompt_token_ids.count(0) == 1


def test_several_conversations_are_answered_in_order(llm):
    alone = [llm.chat(messages, PARAMS)[0].outputs for messages in (HELLO, ANSWERED)]
    assert [output.outputs for output in llm.chat([HELLO, ANSWERED], PARAMS)] == alone
    assert [
        len(output.outputs[0].token_ids)
        for output in llm.chat([HELLO, HELLO], [PARAMS, SamplingParams(max_tokens=2, ignore_eos=True)])
    ] == [4, 2]


def test_the_template_may_be_a_file_and_the_tokenizers(tmp_path, llm, tiny):
    """A folder that only lends its tokenizer lends its template, too."""
    path = folder_with(tmp_path / "model", TEMPLATE, as_file=True)
    lent = LLM(tiny, tokenizer=str(path), num_kvcache_blocks=16)
    assert lent.chat(HELLO, PARAMS)[0].prompt == llm.chat(HELLO, PARAMS)[0].prompt


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], r"messages must be a non-empty list of messages, got \[\]"),
        ("Hello", "messages must be a non-empty list of messages, got 'Hello'"),
        (["Hello"], r"messages\[0\] must be a dict with the text 'role' and 'content', got 'Hello'"),
        ([*HELLO, {"role": "user"}], r"messages\[1\] must be a dict with the text .* got {'role': 'user'}"),
        (
            [{"role": 5, "content": "a"}],
            r"messages\[0\] must be a dict with the text 'role' and 'content', got {'role': 5",
        ),
        (
            [{"role": "user", "content": 5}],
            r"messages\[0\]\['content'\] must be a text, None, or a list of text parts, got 5",
        ),
        (
            [{"role": "user", "content": ["a", {"type": "image_url", "image_url": "b"}]}],
            r"messages\[0\]\['content'\]\[1\] must be {'type': 'text', 'text': ...}: models here read text alone, got",
        ),
        (
            [{"role": "assistant", "tool_calls": ["f"]}],
            r"messages\[0\]\['tool_calls'\] must be a list of dicts, got \['f'\]",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
            r"messages\[0\]\['tool_calls'\]\[0\]: arguments must be JSON, got '{'",
        ),
        ([HELLO, []], r"messages must be a non-empty list of messages, got \[\]"),
        (
            [{"role": "tool", "content": "5"}],
            "the chat template refuses these messages: Only system, user and assistant speak, not tool$",
        ),
    ],
    ids=["none", "text", "texts", "content", "role-5", "content-5", "image", "call", "arguments", "second", "role"],
)
def test_wrong_messages_are_one_error(llm, messages, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        llm.chat(messages, PARAMS)
    assert llm.chat(HELLO, PARAMS)  # the engine goes on


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "copy",
            "description": "Copies a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]
WITH_TOOLS = """{%- if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}
{%- if mood is defined %}{{ mood }} {% endif %}
{%- for message in messages %}[{{ message.role }}] {{ message.content }}
{%- for call in message.tool_calls or [] %}<{{ call.function.name }}:{{ call.function.arguments.path }}>{% endfor %}\n
{%- endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"""
CALLED = [
    {"role": "user", "content": [{"type": "text", "text": "Copy"}, {"type": "text", "text": "a file."}, "Now."]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "copy", "arguments": '{"path": "a.py"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]


def test_tools_calls_and_parts_are_what_the_template_reads(tmp_path):
    from transformers import AutoTokenizer

    path = folder_with(tmp_path / "model", WITH_TOOLS)
    llm = LLM(str(path), device="cpu", num_kvcache_blocks=16)
    [output] = llm.chat(CALLED, PARAMS, tools=TOOLS, chat_template_kwargs={"mood": "calm"})
    plain = [
        {"role": "user", "content": "Copy\na file.\nNow."},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "copy", "arguments": {"path": "a.py"}}}],
        },
        {"role": "tool", "content": "done"},
    ]
    theirs = AutoTokenizer.from_pretrained(path)
    settings = {"tokenize": False, "add_generation_prompt": True, "tools": TOOLS, "mood": "calm"}
    assert output.prompt == theirs.apply_chat_template(plain, **settings)
    assert '"name": "copy"' in output.prompt and "<copy:a.py>" in output.prompt and "calm" in output.prompt
    assert CALLED[1]["content"] is None and CALLED[1]["tool_calls"][0]["function"]["arguments"] == '{"path": "a.py"}'
    assert llm.chat(CALLED, PARAMS, tools=[])[0].prompt == llm.chat(CALLED, PARAMS)[0].prompt


def test_a_template_of_several_is_chosen_by_tools_and_by_its_name(tmp_path):
    path = folder_with(tmp_path / "model", None)
    several = [{"name": name, "template": name.upper()} for name in ("default", "tool_use", "short")]
    several[1]["template"] += " of {{ tools | length }}"
    config = json.loads((path / "tokenizer_config.json").read_text()) | {"chat_template": several}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    llm = LLM(str(path), device="cpu", num_kvcache_blocks=16)
    given = ({}, {"tools": TOOLS}, {"chat_template": "short"})
    assert [llm.chat(HELLO, PARAMS, **own)[0].prompt for own in given] == ["DEFAULT", "TOOL_USE of 1", "SHORT"]


def test_a_conversation_may_bring_its_template(llm, tmp_path, tiny):
    own = "{{ bos_token }}{% for message in messages %}{{ message.content }}!{% endfor %}"
    assert llm.chat(HELLO, PARAMS, chat_template=own)[0].prompt == "<|endoftext|>Return a new!"
    assert llm.chat(HELLO, PARAMS)[0].prompt.endswith("[assistant]")
    without = LLM(str(folder_with(tmp_path / "model", None)), device="cpu", num_kvcache_blocks=16)
    assert without.chat(HELLO, PARAMS, chat_template=own)[0].prompt == "<|endoftext|>Return a new!"
    no_folder = LLM(tiny, tokenizer=TOKENIZER, num_kvcache_blocks=16)
    assert no_folder.chat(HELLO, PARAMS, chat_template=own)[0].prompt == "Return a new!"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tools": "copy"}, "tools must be a list of dicts such as {'type': 'function', ...}, got 'copy'"),
        ({"tools": [print]}, "tools must be a list of dicts such as"),
        ({"tools": TOOLS}, "tools cannot be told to the model: its chat template does not read them"),
        ({"tools": TOOLS, "chat_template": "a {{ tool }}"}, "tools cannot be told to the model"),
        ({"chat_template": 5}, "chat_template must be a text, got 5"),
        ({"chat_template_kwargs": [1]}, r"chat_template_kwargs must be a dict with names as keys, got \[1\]"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs has 'tools', which is set on its own"),
        ({"chat_template_kwargs": {"mood": {1}}}, "messages, tools and chat_template_kwargs must hold what JSON can"),
    ],
    ids=str,
)
def test_wrong_tools_and_templates_are_one_error(llm, given, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        llm.chat(HELLO, PARAMS, **given)
    assert llm.chat(HELLO, PARAMS)


def test_an_answer_begins_or_a_message_goes_on(llm):
    with pytest.raises(ValueError, match="^continue_final_message=True goes on .* set one of them to False$"):
        llm.chat(ANSWERED, PARAMS, continue_final_message=True)


def test_a_model_without_a_template(tmp_path, small):
    path = folder_with(tmp_path / "model", None)
    with pytest.raises(
        ValueError, match=r"^'.*model' has no chat template \(chat_template.jinja, or .*use generate, or"
    ):
        LLM(str(path), device="cpu", num_kvcache_blocks=1).chat(HELLO)
    with pytest.raises(ValueError, match=r"^'GPT2' has no chat template \(only a folder of a mod"):
        LLM(small, num_kvcache_blocks=1).chat(HELLO)


@pytest.mark.parametrize(
    "template", ["{% for %}", "{{ messages[0].content.__class__.__mro__ }}"], ids=["wrong", "unsafe"]
)
def test_a_template_that_is_wrong_or_reaches_out_is_refused(tmp_path, template):
    path = folder_with(tmp_path / "model", template)
    with pytest.raises(ValueError, match="^the chat template refuses these messages: "):
        LLM(str(path), device="cpu", num_kvcache_blocks=1).chat(HELLO)


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "operation": "{{ (10 ** (10 ** (messages | length * 9))) % 7 }}",
    "text": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "list": "{{ ([messages] * 10 ** 12) | length }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
}


# One that a deadline ends, one that takes memory, one that writes without end, one that is too deep.
ENDLESS_DAILY = ("loops", "list", "output", "recursion")


@pytest.mark.parametrize("template", in_every_run({name: (name,) for name in ENDLESS}, ENDLESS_DAILY))
def test_an_endless_template_ends(tmp_path, monkeypatch, template):
    """It ends in any thread: no signal is needed."""
    monkeypatch.setattr("roseinfer.llm.chat.RENDER_SECONDS", 2)
    path = folder_with(tmp_path / "model", "{% if messages[0].content == 'go' %}" + ENDLESS[template] + "{% endif %}ok")
    chat = ChatTemplate.of(str(path))
    with ThreadPoolExecutor() as threads:
        endless = threads.submit(chat.render, [{"role": "user", "content": "go"}], True, False)
        with pytest.raises(ValueError, match="^the chat template refuses these messages: "):
            endless.result(timeout=60)
    assert chat.render(HELLO, True, False) == "ok"  # the next conversation is rendered


def test_what_a_template_prints_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr("roseinfer.llm.chat.MOST_CHARACTERS", 5)
    chat = ChatTemplate.of(str(folder_with(tmp_path / "model", "{{ messages[0].content }}")))
    assert chat.render([{"role": "user", "content": "12345"}], True, False) == "12345"
    with pytest.raises(ValueError, match=": it renders 6 characters, allowed: at most 5$"):
        chat.render([{"role": "user", "content": "123456"}], True, False)


def test_an_interrupt_loses_no_conversation(tmp_path, monkeypatch):
    """Its answer is not the next one's."""
    chat = ChatTemplate.of(str(folder_with(tmp_path / "model", "{{ messages[0].content }}")))
    exchange = chat._renderer._exchange

    def interrupted(line: str) -> str:
        exchange(line)
        raise KeyboardInterrupt

    monkeypatch.setattr(chat._renderer, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat.render([{"role": "user", "content": "first"}], True, False)
    monkeypatch.undo()
    assert chat.render([{"role": "user", "content": "second"}], True, False) == "second"


def test_threads_get_their_own_texts(tmp_path):
    chat = ChatTemplate.of(str(folder_with(tmp_path / "model", "{{ messages[0].content }}")))
    texts = [f"{i} é\n\u2028\ud83d" for i in range(40)]
    with ThreadPoolExecutor(4) as threads:
        rendered = threads.map(lambda text: chat.render([{"role": "user", "content": text}], True, False), texts)
        assert list(rendered) == texts


def test_the_process_of_a_template_ends_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr("roseinfer.llm.chat.Worker", Worker)
    chat = ChatTemplate.of(str(folder_with(tmp_path / "model", "ok")))
    process = chat._renderer._process
    assert process.poll() is None
    del chat
    gc.collect()
    assert process.poll() is not None


def test_a_process_that_was_ended_between_two_requests_is_started_again(monkeypatch):
    monkeypatch.setattr("roseinfer.llm.chat.Worker", Worker)
    with closing(ChatTemplate.of("tiny")) as template:
        for _ in range(2):
            assert template.render([{"role": "user", "content": "a"}], chat_template="{{ messages[0].content }}") == "a"
            template._renderer._process.kill()
            template._renderer._process.wait()


def test_a_process_starts_beside_its_callers_work():
    """So only an answer waits for its imports, and says that they failed, each time that it is asked."""
    worker = Worker("no_such_module", 1)
    for _ in range(2):
        with pytest.raises(ProcessEnded, match="^a process did not start: try .* -I -c 'import no_such_module'$"):
            worker.answer()
    worker.close()
    assert worker.answer() == {"error": "it was ended, since it took more than 1 s or too much memory"}


def test_messages_are_what_json_can_hold(llm):
    with pytest.raises(
        ValueError,
        match="^messages, tools and chat_template_kwargs must hold what JSON can: Object of type set is not JSON",
    ):
        llm.chat([{"role": "user", "content": "", "tools": {1}}], PARAMS)
