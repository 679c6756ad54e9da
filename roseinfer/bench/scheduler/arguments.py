"""The posts' command line: its arguments, and what they ask to be served."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from roseinfer.models import Model, load_tokenizer
from roseinfer.sequence import SamplingParams

from .serve import MODE, Encode, Workload, words_as_tokens

# The first post's checkpoint: GPT-2 small as it was before training. It was never published.
POST_CHECKPOINT, STAND_IN = "gpt2_small_ddp_edu_amp_bf16_init.pt", "random:gpt2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--hf-model-id", metavar="MODEL", help="tiny, random:gpt2, a local folder or a hub id")
    checkpoint = (
        f"a model as above; {POST_CHECKPOINT}, which only the first post's author has, stands for {STAND_IN}, "
        "which is the same shape, untrained as well"
    )
    model.add_argument("--checkpoint-path", metavar="MODEL", help=checkpoint)
    add("--tokenizer-name", metavar="MODEL", help="whose tokenizer to use; the model's own when not given")
    add("--device", help="cpu, cuda, ...; cuda where there is one when not given")
    dtype = parser.add_mutually_exclusive_group()
    dtype.add_argument("--bf16", action="store_true", help="weights in bfloat16, not in float16 (GPU) or float32 (CPU)")
    dtype.add_argument("--no-amp", action="store_true", help="weights in float32 on a GPU too")
    add("--stage", help="such as s03; what runs if not given: see --paged-attn")
    paged = "the finished engine, with its own scheduler; without it the newest stage with a dense cache"
    add("--paged-attn", action="store_true", help=paged)

    add("--prompt", required=True, help="the prompt of every request")
    add("--num-requests", type=int, default=16, help="requests with that prompt")
    add("--max-new-tokens", type=int, default=100, help="tokens of a request at most")
    add("--no-stop-on-eos", action="store_true", help="go on to --max-new-tokens after an end token")
    add("--pretok", action="store_true", help="encode all prompts before the clock starts")
    add("--do-sample", action="store_true", help="draw tokens; greedy without it")
    add("--temperature", type=float, default=1.0, help="when drawing")
    add("--top-k", type=int, default=0, help="when drawing: 0 keeps all")
    add("--top-p", type=float, default=1.0, help="when drawing: 1 keeps all")

    add("--mode", default=MODE, choices=(MODE,), help="the posts' own: a request that ends makes room for another")
    add("--max-batch-size", type=int, default=8, help="sequences that run at a time; the others wait")
    add("--no-prefix-cache", action="store_true", help="the engine computes every prompt whole; no stage shares any")
    add("--warmup-runs", type=int, default=1, help="runs before those that are measured")
    add("--repeat-runs", type=int, default=3, help="measured runs")
    profile = (
        "one run, printed whole, without warm-up; a trace of three decode steps, after one that is not profiled and "
        f"two to warm up, is written to <profile-dir>/{MODE}_decode.json"
    )
    add("--profile", action="store_true", help=profile)
    add("--profile-dir", type=Path, default=Path("profiles"), help="where traces go")
    add("--output", type=Path, metavar="FILE", help="write arguments, machine and every raw time there")


def model_spec(args: argparse.Namespace) -> str:
    """Return the model that is asked for, or the stand-in for the post's checkpoint, which stderr then names."""
    spec = args.hf_model_id or args.checkpoint_path
    if Path(spec).name != POST_CHECKPOINT:
        return spec
    print(f"{spec}: {STAND_IN} stands for it, the same shape and as untrained", file=sys.stderr)
    return STAND_IN


def workload(args: argparse.Namespace, spec: str, model: Model) -> Workload:
    """Make the workload. spec: the model whose own tokenizer is used when no other is named.

    Raises ValueError for an empty prompt and a tokenizer not found.
    """
    params = SamplingParams(
        max_tokens=args.max_new_tokens,
        temperature=args.temperature if args.do_sample else 0.0,
        top_k=args.top_k,
        top_p=args.top_p,
        ignore_eos=args.no_stop_on_eos,
    )
    encode = encoding(args.tokenizer_name, spec, model)
    return Workload([args.prompt] * args.num_requests, encode, params, args.pretok)


def encoding(tokenizer_name: str | None, spec: str, model: Model) -> Encode:
    """Return the tokenizer's encoding. With random weights, each word is one token if no tokenizer can be loaded."""
    try:
        tokenizer = load_tokenizer(tokenizer_name or spec)
    except ValueError as error:
        if not spec.startswith("random:"):
            raise
        reason = f"{error}\n" if tokenizer_name else ""
        print(f"{reason}{spec} runs without a tokenizer: each word of a prompt is one token", file=sys.stderr)
        return words_as_tokens(model.config.vocab_size)
    return lambda text: tokenizer.encode(text).ids
