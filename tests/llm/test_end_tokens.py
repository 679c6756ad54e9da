"""A text ends at the end tokens that the model's files name, whichever of them names one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served import TEXTS, TOKENIZER, params

from roseinfer.llm.llm import LLM
from roseinfer.structured_outputs import StructuredOutputsParams

END, OTHER = TOKENIZER.token_to_id("<|endoftext|>"), 300


def name_ends(folder: Path, in_config: object, in_generation: object, in_tokenizer: str | None) -> None:
    """Write the end tokens of three files. in_generation: "no file" for none."""
    for name, key, value in (
        ("config.json", "eos_token_id", in_config),
        ("tokenizer_config.json", "eos_token", in_tokenizer),
    ):
        settings = json.loads((folder / name).read_text()) | {key: value, "tokenizer_class": "TokenizersBackend"}
        (folder / name).write_text(json.dumps(settings))
    if in_generation != "no file":
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": in_generation}))


@pytest.mark.parametrize(
    ("in_config", "in_generation", "in_tokenizer", "ends"),
    [
        (None, "no file", "<|endoftext|>", [END]),
        (END, None, "<|endoftext|>", [END]),
        (None, OTHER, "<|endoftext|>", [OTHER, END]),
        (OTHER, "no file", "<|endoftext|>", [OTHER, END]),
        (None, [OTHER, END], "<|endoftext|>", [OTHER, END]),
        (OTHER, "no file", None, [OTHER]),
        (END, OTHER, None, [OTHER]),
        (None, "no file", None, []),
    ],
)
def test_any_file_may_name_it(folder, in_config, in_generation, in_tokenizer, ends):
    name_ends(folder, in_config, in_generation, in_tokenizer)
    llm = LLM(str(folder), device="cpu", num_kvcache_blocks=8)
    for token in (END, OTHER):
        asked = params(4, logit_bias={token: 100.0}, ignore_eos=False)
        [ended] = llm.generate(TEXTS[0], asked)[0].outputs
        assert (ended.finish_reason, len(ended.token_ids)) == (("stop", 1) if token in ends else ("length", 4))
        assert ended.stop_reason is None


def test_the_tokenizers_end_token_is_one_in_every_way(folder):
    name_ends(folder, None, None, "<|endoftext|>")
    llm = LLM(str(folder), device="cpu", num_kvcache_blocks=8)
    likely = {"logit_bias": {END: 100.0}}
    ignored, late, formed = llm.generate(
        TEXTS[:3],
        [
            params(5, **likely, ignore_eos=True),
            params(5, **likely, ignore_eos=False, min_tokens=3),
            params(20, ignore_eos=False, structured_outputs=StructuredOutputsParams(choice=["yes"])),
        ],
    )
    assert ignored.outputs[0].token_ids == [END] * 5
    assert len(late.outputs[0].token_ids) == 4 and late.outputs[0].token_ids[-1] == END
    assert (formed.outputs[0].text, formed.outputs[0].finish_reason) == ("yes", "stop")


def test_a_model_of_the_callers_is_used_as_it_is(folder, tiny):
    before = tiny.config
    name_ends(folder, None, None, "None")
    LLM(tiny, tokenizer=str(folder), num_kvcache_blocks=8)
    assert tiny.config is before
