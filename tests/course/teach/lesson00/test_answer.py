"""ask: a question, and a model's answer as it grows."""

from __future__ import annotations

import pytest

from course import teach
from course.display.board import VEGA
from roseinfer import LLM, SamplingParams
from roseinfer.llm.chat import NoChatTemplate

QUESTION = "Write a Python function that reverses a string."
MAX_TOKENS = 40
GREEDY = SamplingParams(max_tokens=MAX_TOKENS, temperature=0)


@pytest.mark.slow
def test_an_answer_grows_by_a_token_a_frame_and_keeps_its_indents():
    with LLM("smollm2", device="cpu") as llm:
        answer = teach.ask(llm, QUESTION, max_tokens=MAX_TOKENS)
        [whole] = llm.chat([{"role": "user", "content": QUESTION}], GREEDY, use_tqdm=False)
    question, text = repr(answer).split("\n", 1)
    assert question == QUESTION and text.startswith("```python\ndef reverse_string")
    assert text == whole.outputs[0].text and answer.lengths == {"": len(whole.outputs[0].token_ids)}
    frames = [[cell for panel in frame.panels for cell in panel.cells] for frame in answer.frames]
    assert all(len(before) <= len(after) for before, after in zip(frames, frames[1:], strict=False))
    [body] = [cell for cell in frames[-1] if str(cell.text).startswith("return")]
    assert body.column == len("    ")
    bundle, metadata = answer._repr_mimebundle_()
    assert set(bundle) == {"text/plain", VEGA, "image/png"} and "tok/s" in metadata["image/png"]["alt"]


@pytest.mark.slow
def test_a_model_that_answers_nobody_is_refused():
    with LLM("tiny", device="cpu", num_kvcache_blocks=4) as llm, pytest.raises(NoChatTemplate, match="tiny"):
        teach.ask(llm, QUESTION)
