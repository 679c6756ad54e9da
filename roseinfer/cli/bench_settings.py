"""Settings of each benchmark, which are its flags. Fields have the names of the benchmark's keywords."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass
from pathlib import Path

from roseinfer.cli.command import DEVICE, MODEL
from roseinfer.cli.flags import Range, flag

DTYPES = ("float32", "bfloat16", "float16")
QUANTIZATIONS = ("int8", "int4")
CONTENDERS = "hf, engine, ctranslate2, llama.cpp (these two want `make peers`), stages such as s04; no stages when"
SERVERS = "of engine, no-prefix-cache (the engine), hf (transformers' continuous batching)"
PROMPTS = "repeating: passages of Python's documentation that the model repeats, ended by their own beginnings"
SPECULATIVE = "also the engine with drafts: from the text, or by a second model"
AFTER_SHORT_RUN = "interleaved runs of each, after a short one for warm-up"
AFTER_RUN = "interleaved runs of each, after one for warm-up"
WEIGHTS_AND_CACHE = "of weights and KV cache"


@dataclass(frozen=True, kw_only=True)
class Offline:
    model: str = flag("tiny", MODEL)
    contenders: List[str] | None = flag(None, f"{CONTENDERS} not given", metavar="NAMES")
    batch_sizes: List[int] = flag((1, 8, 16, 64), "prompts at once", metavar="SIZES")
    prompt_lens: List[int] = flag((8,), "tokens of each prompt", name="--prompt-len", metavar="LENGTHS")
    max_tokens: int = flag(64, "new tokens of each prompt; with 1 the tables tell the time to first token")
    dtypes: List[str] = flag(("float32",), f"of {', '.join(DTYPES)}", name="--dtype", metavar="DTYPES")
    quantization: List[str] = flag(
        (), "also weights in 8 or 4 bits (int8,int4), for contenders that have them", metavar="NAMES"
    )
    repeats: int = flag(3, AFTER_SHORT_RUN)
    seed: int = flag(0, "of the prompts")
    prompts: str = flag("random", PROMPTS, choices=("random", "repeating"))
    speculative: str | None = flag(None, SPECULATIVE, choices=("ngram", "draft_model"))
    num_drafts: int = flag(4, "with --speculative: tokens of a draft")
    draft_model: str | None = flag(None, "with --speculative draft_model; when not given --model in 8 bits")
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Online:
    model: str = flag("tiny", MODEL)
    contenders: List[str] = flag(("engine", "hf"), SERVERS, metavar="NAMES")
    budgets: List[int] = flag(
        (1536, 512, 128, 32),
        "tokens of a step at most; post 003 has nine: 1536,1024,768,512,384,256,128,64,32",
        metavar="SIZES",
    )
    policies: List[str] = flag(("fcfs",), "of the engine: fcfs, shortest, longest_output, packed", metavar="NAMES")
    max_num_seqs: int = flag(64, "sequences at a time; with a smaller budget as many as it has")
    num_requests: int = flag(1000, "of which --scale is the share that runs", name="--requests")
    scale: float = flag(0.05, "1 is all of --requests")
    prompt_lens: Range = flag(
        (256, 256), "of each prompt, or a range such as 16-256", name="--prompt-len", metavar="TOKENS"
    )
    output_lens: Range = flag((16, 16), "of each output, or a range", name="--output-len", metavar="TOKENS")
    prefix_len: int = flag(0, "tokens that all prompts begin with, beside their own")
    rates: List[float] = flag((), "requests a second, such as 2,4: a Poisson process", name="--rate", metavar="RATES")
    loads: List[float] = flag(
        (),
        "the same, as shares of a capacity that is measured first, such as 0.5,0.8",
        name="--load",
        metavar="SHARES",
    )
    trace: Path | None = flag(
        None,
        "requests with times and lengths of their own, a line of JSON each: "
        '{"seconds": 0.25, "prompt_len": 256, "output_len": 16}',
        metavar="FILE",
    )
    burst: int = flag(1, "requests that come together")
    repeats: int = flag(3, AFTER_SHORT_RUN)
    seed: int = flag(0, "of lengths, arrivals and prompts")
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Chunks:
    model: str = flag("tiny", MODEL)
    prompt_len: int = flag(448, "tokens of the long prompt")
    num_decoding: int = flag(8, "requests that decode when it comes", name="--decoding")
    budgets: List[int] = flag((64,), "tokens of a step at most; without chunks runs beside them", metavar="SIZES")
    repeats: int = flag(5, AFTER_RUN)
    seed: int = flag(0, "of the prompts")
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Memory:
    model: str = flag("tiny", MODEL)
    batch_size: int = flag(8, "prompts at once")
    prompt_len: int = flag(8, "tokens of each prompt")
    max_tokens: int = flag(64, "new tokens of each prompt")
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    quantization: str | None = flag(None, "weights in 8 or 4 bits, and the rest in fp32", choices=QUANTIZATIONS)


@dataclass(frozen=True, kw_only=True)
class Host:
    model: str = flag("tiny", f"{MODEL}; without a tokenizer nothing is detokenised")
    batch_sizes: List[int] = flag((1, 2, 4, 8, 16, 32, 64), "sequences that run at once", metavar="SIZES")
    prompt_len: int = flag(8, "tokens of each prompt")
    max_tokens: int = flag(34, "steps of a run: the prefill, the last one, and those that count")
    repeats: int = flag(3, AFTER_RUN)
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Executors:
    model: str = flag("tiny", MODEL)
    batch_sizes: List[int] = flag((1, 8, 64), "sequences that run at once", metavar="SIZES")
    prompt_len: int = flag(8, "tokens of each prompt")
    max_tokens: int = flag(64, "new tokens of each prompt")
    repeats: int = flag(5, AFTER_RUN)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Kernels:
    device: str | None = flag(None, DEVICE)


@dataclass(frozen=True, kw_only=True)
class Serve:
    rate: float = flag(10.0, "requests a second, a Poisson process", short="-X")
    seconds: float = flag(10.0, "for which they come", short="-T")
    port: int = flag(8000, "of a server on this machine", short="-P")
    url: str | None = flag(None, "of a server elsewhere, such as http://10.0.0.5:8000", metavar="URL")
    folder: Path | None = flag(
        None,
        "write serve.json and serve.html there, or servers.json with --contenders",
        name="--output-dir",
        short="-O",
        metavar="FOLDER",
    )
    model: str | None = flag(
        None,
        "the server's name for it, the first that it lists when not given; with --contenders what to serve, "
        "random:gpt2 when not given",
        metavar="NAME",
    )
    api_key: str | None = flag(None, "that the server asks for", metavar="KEY")
    vocab_size: int | None = flag(None, "of the prompts' random token ids; the server's own when it tells it")
    prompt_lens: Range = flag((8, 64), "of each prompt, or a range", name="--prompt-len", metavar="TOKENS")
    output_lens: Range = flag((16, 64), "of each output, or a range", name="--output-len", metavar="TOKENS")
    cancelled: float = flag(0.0, "share of clients that go away within a second", metavar="SHARE")
    malformed: float = flag(0.0, "share of requests that are no request", metavar="SHARE")
    ttft_ms: float = flag(500.0, "time to first token that a good answer may take")
    itl_ms: float = flag(50.0, "mean gap between tokens that a good answer may have")
    stream: bool = flag(True, "ask for answers chunk by chunk")
    clients: int | None = flag(None, "a closed loop of so many, each sends when its last answer has ended", metavar="N")
    verify: str | None = flag(None, "compare every answer with this model's, offline, in float32", metavar="MODEL")
    seed: int = flag(0, "of arrivals, lengths, prompts and shares")
    contenders: List[str] | None = flag(
        None, "start and race these servers: engine, llama-server (which wants `make peers`)", metavar="NAMES"
    )
    slots: int = flag(8, "with --contenders: requests that each server runs at a time")
    precision: str = flag("float32", "with --contenders: of the weights", choices=("float32", "int8"))
    repeats: int = flag(3, f"with --contenders: {AFTER_RUN}")
