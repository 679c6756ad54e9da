"""What `generate` and `chat` share: flags of a model and of how it writes, and a text on the terminal as it grows."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from roseinfer.cli.command import FAILED, INTERRUPTED, Failed
from roseinfer.cli.flags import given_fields
from roseinfer.cli.progress import shown_progress
from roseinfer.cli.repository import with_stage
from roseinfer.settings import DEVICE, ENGINE, flag

if TYPE_CHECKING:
    from roseinfer.llm.llm import LLM
    from roseinfer.llm.outputs import RequestOutput
    from roseinfer.models import ModelTokenizer
    from roseinfer.sampling_params import SamplingParams

WRITES = "the model's generation_config.json decides when not given"


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """Arguments of LLM that are flags of every command that answers."""

    dtype: str | None = flag(
        None,
        "float32 (when not given; on a CPU, a GGUF file then keeps its own bits), float16, bfloat16, or auto for the "
        "checkpoint's own (float32 for a GGUF file)",
    )
    quantization: str | None = flag(None, "int8 or int4 for matrices in 8 or 4 bits, on a CPU")
    device: str | None = flag(None, DEVICE)
    max_model_len: int | None = flag(None, "tokens of prompt and answer; the model's when not given")
    engine: str | None = flag(None, ENGINE, metavar="FOLDER")


@dataclass(frozen=True, kw_only=True)
class Writing:
    temperature: float | None = flag(None, f"0 is greedy; {WRITES}")
    top_k: int | None = flag(None, "the likeliest tokens that are kept, 0 for all")
    top_p: float | None = flag(None, "the share of probability that is kept, 1 for all")
    min_p: float | None = flag(None, "the least probability that is kept, as a share of the likeliest token's")
    repetition_penalty: float | None = flag(None, "above 1 keeps the model from repeating itself")
    seed: int | None = flag(None, "the same text again, where it is drawn")


def read_tokenizer(model: str, if_text: str) -> ModelTokenizer:
    """Read a model's tokenizer, once its config has been read; nothing else is loaded. Raises ModelLoadError.

    if_text: what the error says where MODEL may be a text that was meant for the model.
    """
    from roseinfer.models import NoSuchModel, model_config, model_tokenizer

    try:
        model_config(model)  # what is no model here has no tokenizer to speak of
        return model_tokenizer(model)
    except NoSuchModel as error:
        if "/" in model and " " not in model:  # a hub id
            raise
        raise NoSuchModel(f"{error}. {if_text}") from error


def llm_and_params(args: Namespace, tokenizer: ModelTokenizer, **others: Any) -> tuple[LLM, SamplingParams]:
    """Load the model that was named, for one request at a time. Its own params have what was typed in place of theirs.

    Raises ValueError as SamplingParams does, before anything is loaded, and as LLM does.
    """
    from roseinfer.llm.llm import LLM
    from roseinfer.sampling_params import SamplingParams

    typed = given_fields(Writing, args) | others
    SamplingParams(**typed)
    given = with_stage(given_fields(ModelFlags, args))
    with shown_progress(f"loading {args.model}; the first run with a kind of model also compiles its kernels"):
        llm = LLM(args.model, tokenizer=tokenizer, max_num_seqs=1, **given)
    return llm, replace(llm.get_default_sampling_params(), **typed)


def show_as_it_grows(llm: LLM, prompt: str | Sequence[int], params: SamplingParams) -> RequestOutput:
    """Print the text that follows a prompt while it is written, and a newline.

    A terminal also gets the prompt before it, where that is a text, and control characters spelled out, so that a text
    cannot steer it; a file or a pipe gets the text unchanged. Ctrl-C ends the text, and nothing else: the output then
    says "abort". Raises Failed for logits that are not finite.
    """
    from roseinfer.display.text_table import printable
    from roseinfer.engine.calls import noted_interrupts

    is_terminal = sys.stdout.isatty()
    spell = printable if is_terminal else str
    shown, output = 0, None
    with noted_interrupts() as is_pressed:
        stream = llm.stream(prompt, params)
        if is_terminal and isinstance(prompt, str):
            print(spell(prompt), end="", flush=True)
        for output in stream:
            text = output.outputs[0].text
            print(spell(text[shown:]), end="", flush=True)
            shown = len(text)
            if is_pressed() and not output.finished:
                llm.abort(output.request_id)
    print(flush=True)
    assert output is not None, "a request has a last output"
    if output.outputs[0].error:
        raise Failed(output.outputs[0].error)
    return output


def status_of(output: RequestOutput) -> int:
    """Return the exit status of a command that was to show one text."""
    reason = output.outputs[0].finish_reason
    if reason == "abort":
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return FAILED if reason == "error" else 0
