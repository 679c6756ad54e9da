"""Chat templates are rendered as transformers renders them, or refused by both."""

from __future__ import annotations

import pytest
from fresh_python import printed_by

from roseinfer.llm.template_worker import answer
from roseinfer.models import model_tokenizer
from roseinfer.models.gguf_path import packaged_smollm2

ASKED = [{"role": "system", "content": " Be <b>brief</b> é "}, {"role": "user", "content": "Return a new"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "The copy \n", "reasoning": "it is new"}]
TOOLS = [{"type": "function", "function": {"name": "copy", "description": "'<é>'", "parameters": {"b": 1, "a": 2.5}}}]
EACH = "{% for message in messages %}{{ message.content }}|{% endfor %}"
TEMPLATES = {
    "lines": "{{ bos_token }}\n  {% for m in messages %}\n[{{ m.role }}] {{ m.content | trim }}\n  {% endfor %}\n end",
    "as it is": EACH,
    "break": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% set a = 1 %}{% generation %}{{ m.content }}{{ loop.index }}{% set a = 2 %}"
    "{% endgeneration %}{{ a }}{% endfor %}",
    "tojson": "{{ tools | tojson }}{{ tools | tojson(indent=2) }}"
    "{{ messages[0] | tojson(True, sort_keys=True) }}{{ messages[-1].content }}",
    "reasoning": "{{ messages[-1].reasoning_content }}, {{ messages[-1].thinking }}, {{ messages[-1] | tojson }}",
    "defined": "{{ documents is defined }} {{ tools is iterable }} {{ mood }}{{ nothing }}{{ add_generation_prompt }}",
    "dict": "{{ dict(a=1, b=2) }}{{ dict([('a', 1)]) }}{{ dict.fromkeys('ab', 3) }}{{ namespace(self=4).self }}",
    "namespace": "{% set ns = namespace({'n': 1}, m=2) %}{% set ns.n = ns.n + ns.m %}{{ ns.n }}",
    "today": "{{ strftime_now('%Y') | int > 2000 }}",
    "refuses": "{{ raise_exception('Only users speak') }}",
    "of Python": "{{ messages.__class__.__mro__ }}",
    "changes a list": "{{ messages.append(1) }}",
    "hidden attribute": "{% set ns = namespace(_a=1) %}",
    "hidden attribute later": "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "class of dict": "{{ dict.mro() }}",
    "no Jinja": "{% for %}",
}
REFUSED = list(TEMPLATES)[-7:]
SETTINGS = [
    (ASKED, {"add_generation_prompt": True, "tools": None}, {"bos_token": "<s>", "mood": "calm"}),
    (ANSWERED, {"add_generation_prompt": False, "tools": TOOLS}, {"documents": [{"title": "a", "text": "b"}]}),
    (ANSWERED, {"add_generation_prompt": False, "tools": TOOLS, "continue_final_message": True}, {}),
]


def assert_as_transformers(template: str) -> set[str]:
    from transformers.utils.chat_template_utils import render_jinja_template

    kinds = set()
    for messages, settings, names in SETTINGS:
        ours = answer(10**6, names, messages=messages, chat_template=template, **settings)
        try:
            [[theirs], _] = render_jinja_template([messages], chat_template=template, **settings, **names)
        except Exception:
            assert list(ours) == ["error"], ours
        else:
            assert ours == {"text": theirs}
        kinds |= ours.keys()
    return kinds


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_text_is_transformers_own(name):
    kinds = assert_as_transformers(TEMPLATES[name])
    assert ("text" in kinds) == (name not in REFUSED)


@pytest.mark.skipif(packaged_smollm2() is None, reason="SmolLM2 is not installed")
def test_smollm2s_text_is_transformers_own():
    assert assert_as_transformers(model_tokenizer("smollm2").chat_templates["default"]) == {"text"}


def test_a_last_message_goes_on_with_the_spaces_that_the_template_keeps():
    texts = [
        answer(100, {}, messages=ANSWERED[-1:], chat_template=template, continue_final_message=True)["text"]
        for template in (EACH, "{{ messages[0].content | trim }}\n")
    ]
    assert texts == ["The copy \n", "The copy"]


@pytest.mark.slow
def test_a_process_for_templates_imports_neither_transformers_nor_torch():
    code = "import roseinfer.llm.worker, roseinfer.llm.template_worker, sys; print('torch' in sys.modules)"
    assert printed_by(f"{code}; print('transformers' in sys.modules)") == "False\nFalse\n"
