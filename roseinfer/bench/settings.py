"""Settings of each benchmark: what one asks it, and its command's flags and help. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roseinfer.arguments import each_once, require_count, require_positive
from roseinfer.arrivals import (
    MOST_REQUESTS,
    Arrival,
    Range,
    all_at_second_0,
    poisson,
    read_trace,
    require_order,
    require_range,
)
from roseinfer.arrivals import bursts as draw_bursts
from roseinfer.blocks import BLOCK_SIZE
from roseinfer.settings import MODEL, NATURAL, POSITIVE, SIZES, Settings, device_flag, flag, names_of

DTYPES = ("float32", "bfloat16", "float16")
ROUNDED, STORED = ("int8", "int4"), "stored"
QUANTIZED = (*ROUNDED, STORED)  # precisions of weights alone: K, V and the rest are in fp32
PRECISIONS = (*DTYPES, *QUANTIZED)
ENGINE = "engine"
HF_NAME = "HF generate"
HF_NAMES = {"dynamic": HF_NAME, "static": f"{HF_NAME}, static cache"}  # by the kind of its KV cache
# Contenders: as one types them, and as tables name them.
OFFLINE = {"hf": HF_NAME, "engine": ENGINE, "ctranslate2": "CTranslate2", "llama.cpp": "llama.cpp"}
HF = "hf"
ONLINE = {ENGINE: ENGINE, HF: "HF continuous batching"}
SERVERS = ("engine", "llama-server")

OFFLINE_HELP = "hf, engine, ctranslate2, llama.cpp (these two want `make peers`), stages such as s04"
ONLINE_HELP = "of engine, hf (transformers' continuous batching)"
TRACE_HELP = (
    "requests with times and lengths of their own, a line of JSON each: "
    '{"seconds": 0.25, "prompt_len": 256, "output_len": 16}'
)
# Settings of a load that only one of its two kinds has, and those that no result tells.
OF_ONE_SERVER = ("url", "api_key", "vocab_size", "verify", "cancelled", "malformed", "stream")
OF_CONTENDERS = ("slots", "precision", "repeats")
NOT_TOLD = ("port", "folder", "api_key", "vocab_size", "verify", "contenders")
AFTER_SHORT_RUN = "interleaved runs of each, after a short one for warm-up"
AFTER_RUN = "interleaved runs of each, after one for warm-up"
WEIGHTS_AND_CACHE = "of weights and KV cache"


def blocks_of(num_seqs: int, num_tokens: int, block_size: int = BLOCK_SIZE) -> int:
    """Count the blocks with which num_seqs sequences of num_tokens tokens can run at a time."""
    return num_seqs * -(-num_tokens // block_size)


def above_0(argument: str, values: Sequence[float]) -> None:
    """Raise ValueError, naming the argument, unless all values are numbers above 0, each there once."""
    for value in each_once(argument, values, at_least=0):
        require_positive(argument, value)


@dataclass(frozen=True, kw_only=True)
class Ladder(Settings):
    """A race of stages on the same prompts.

    Args:
        with_hf: let transformers' generate run on the same weights, too.
        hf_caches: one row of it for each kind of cache, "dynamic" or "static".
    """

    batch_size: int = flag(8, "prompts", check=POSITIVE)
    prompt_len: int = flag(8, "tokens of each (random) prompt", check=POSITIVE)
    # The prefill makes the first new token.
    max_new_tokens: int = flag(32, "of each prompt", check=lambda name, value: require_count(name, value, at_least=2))
    repeats: int = flag(3, AFTER_RUN, check=POSITIVE)
    seed: int = flag(0, "of the prompts", check=NATURAL)
    with_hf: bool = True
    hf_caches: Sequence[str] = field(default=("dynamic",), metadata={"check": names_of(HF_NAMES)})


@dataclass(frozen=True, kw_only=True)
class Offline(Settings):
    """Whole batches at once, everyone in turn on the same prompts: prefill to last token, greedily.

    Ratios are to Hugging Face's generate in the same run, and the floor of the whole run stands beside each speed. In
    fp32 wrong tokens fail.
    """

    model: str = flag("tiny", MODEL)
    contenders: Sequence[str] = flag(tuple(OFFLINE), OFFLINE_HELP, metavar="NAMES")
    batch_sizes: Sequence[int] = flag((1, 8, 16, 64), "prompts at once", check=SIZES, metavar="SIZES")
    prompt_lens: Sequence[int] = flag(
        (8,), "tokens of each prompt", check=SIZES, name="--prompt-len", metavar="LENGTHS"
    )
    max_tokens: int = flag(
        64, "new tokens of each prompt; with 1 the tables tell the time to first token", check=POSITIVE
    )
    dtypes: Sequence[str] = flag(
        ("float32",),
        f"of {', '.join(DTYPES)}, or none for --quantization alone",
        check=names_of(DTYPES, 0),
        name="--dtype",
        metavar="DTYPES",
    )
    quantization: Sequence[str] = flag(
        (),
        "also weights in 8 or 4 bits (int8,int4), or as a GGUF file has them (stored), where contenders can",
        check=names_of(QUANTIZED, 0),
        metavar="NAMES",
    )
    repeats: int = flag(3, AFTER_SHORT_RUN, check=POSITIVE)
    seed: int = flag(0, "of the prompts", check=NATURAL)
    device: str = device_flag()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.precisions:
            raise ValueError(f"dtypes must name one of {', '.join(DTYPES)} if quantization names none")
        each_once("precisions", self.precisions)

    @property
    def precisions(self) -> list[str]:
        """The precisions of weights: dtypes, then quantised ones."""
        return [*self.dtypes, *self.quantization]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(self.prompt_lens) + self.max_tokens

    @property
    def num_blocks(self) -> int:
        """How many blocks the largest batch needs."""
        return blocks_of(max(self.batch_sizes), self.longest)

    def record(self) -> dict[str, Any]:
        return super().record() | {"precisions": self.precisions}


@dataclass(frozen=True)
class Workload(Settings):
    """Requests with the lengths of post 003's sweep, unless others are given. Each length is as likely.

    trace: a file that roseinfer.arrivals reads, with its own times, lengths and number of requests.
    """

    num_requests: int = flag(
        1000,
        "of which --scale is the share that runs",
        check=lambda name, value: require_count(name, value, at_least=1, at_most=MOST_REQUESTS),
        name="--requests",
    )
    prompt_lens: Range = flag(
        (256, 256),
        "of each prompt, or a range such as 16-256",
        check=require_range,
        name="--prompt-len",
        metavar="TOKENS",
    )
    output_lens: Range = flag(
        (16, 16), "of each output, or a range", check=require_range, name="--output-len", metavar="TOKENS"
    )
    prefix_len: int = flag(0, "tokens that all prompts begin with, beside their own", check=NATURAL)
    burst: int = flag(1, "requests that come together", check=POSITIVE)
    seed: int = flag(0, "of lengths, arrivals and prompts", check=NATURAL)
    trace: Path | None = flag(None, TRACE_HELP, metavar="FILE")

    @property
    def num_sent(self) -> int:
        """How many requests are sent."""
        return self.num_requests

    @property
    def longest(self) -> Arrival:
        """The request with the most tokens, prompt and output."""
        return max(self.arrivals(None), key=lambda arrival: arrival.prompt_len + arrival.output_len)

    def arrivals(self, rate: float | None) -> list[Arrival]:
        """Return the arrivals at `rate` requests a second, None for all at once. A trace has its own times.

        The lengths do not depend on the rate. Raises ValueError for a rate that is not above 0 and for a bad trace,
        naming its line; FileNotFoundError for a trace that is not there.
        """
        if self.trace is not None:
            arrivals = read_trace(self.trace)
            require_order(arrivals)
            return arrivals
        lengths = {"prompt_lens": self.prompt_lens, "output_lens": self.output_lens, "prefix_len": self.prefix_len}
        given: dict[str, Any] = lengths | {"seed": self.seed}
        each_rate = 1.0 if rate is None else rate
        if self.burst > 1:
            arrivals = draw_bursts(self.num_sent, each_rate, self.burst, **given)
        else:
            arrivals = poisson(self.num_sent, each_rate, **given)
        return arrivals if rate is not None else all_at_second_0(arrivals)


@dataclass(frozen=True, kw_only=True)
class Online(Workload):
    """Requests that come by the clock while the engine steps: throughput against latency over token budgets.

    Post 003's sweep (1,000 requests, 256 tokens in, 16 out, budgets from 1536 to 32) scaled by --scale, all at once
    unless --rate, --load or --trace says when they come. Everyone has the same arrivals and prompts, and decodes
    greedily; in fp32 wrong tokens fail. Ctrl-C ends it between two steps, and what was measured is printed as partial.
    """

    scale: float = flag(0.05, "1 is all of --requests", check=require_positive)
    model: str = flag("tiny", MODEL)
    contenders: Sequence[str] = flag((ENGINE, HF), ONLINE_HELP, check=names_of(ONLINE), metavar="NAMES")
    budgets: Sequence[int] = flag(
        (1536, 512, 128, 32),
        "tokens of a step at most; post 003 has nine: 1536,1024,768,512,384,256,128,64,32",
        check=SIZES,
        metavar="SIZES",
    )
    max_num_seqs: int = flag(64, "sequences at a time; with a smaller budget as many as it has", check=POSITIVE)
    rates: Sequence[float] = flag(
        (), "requests a second, such as 2,4: a Poisson process", check=above_0, name="--rate", metavar="RATES"
    )
    loads: Sequence[float] = flag(
        (),
        "the same, as shares of a capacity that is measured first, such as 0.5,0.8",
        check=above_0,
        name="--load",
        metavar="SHARES",
    )
    repeats: int = flag(3, AFTER_SHORT_RUN, check=POSITIVE)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str = device_flag()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale > (most := MOST_REQUESTS / self.num_requests):
            raise ValueError(f"scale={self.scale:g}: must be at most {most:g}, {MOST_REQUESTS:,} requests")
        for name in ("rates", "loads"):
            if self.trace and (values := getattr(self, name)):
                raise ValueError(f"{name}={','.join(map('{:g}'.format, values))}: trace={self.trace} has its own times")

    @property
    def num_sent(self) -> int:
        return max(1, round(self.scale * self.num_requests))

    def record(self) -> dict[str, Any]:
        return super().record() | {"num_requests": len(self.arrivals(None))}


@dataclass(frozen=True, kw_only=True)
class Chunks(Settings):
    """What a long prompt does to those that decode: their worst gap between tokens, with chunks and without."""

    model: str = flag("tiny", MODEL)
    prompt_len: int = flag(448, "tokens of the long prompt", check=POSITIVE)
    num_decoding: int = flag(8, "requests that decode when it comes", check=POSITIVE, name="--decoding")
    budgets: Sequence[int] = flag(
        (64,), "tokens of a step at most; without chunks runs beside them", check=SIZES, metavar="SIZES"
    )
    repeats: int = flag(5, AFTER_RUN, check=POSITIVE)
    seed: int = flag(0, "of the prompts", check=NATURAL)
    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class Memory(Settings):
    """The engine's peak of memory for one batch, in a fresh process, against its weights and its pool."""

    model: str = flag("tiny", MODEL)
    batch_size: int = flag(8, "prompts at once", check=POSITIVE)
    prompt_len: int = flag(8, "tokens of each prompt", check=POSITIVE)
    max_tokens: int = flag(64, "new tokens of each prompt", check=POSITIVE)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    quantization: str | None = flag(None, "weights in 8 or 4 bits, and the rest in fp32", choices=ROUNDED)

    @property
    def precision(self) -> str:
        return self.quantization or self.dtype


@dataclass(frozen=True, kw_only=True)
class Host(Settings):
    """What the host does in a decode step of the engine beside the model: schedule, prepare, commit, detokenise."""

    model: str = flag("tiny", f"{MODEL}; without a tokenizer nothing is detokenised")
    batch_sizes: Sequence[int] = flag(
        (1, 2, 4, 8, 16, 32, 64), "sequences that run at once", check=SIZES, metavar="SIZES"
    )
    prompt_len: int = flag(8, "tokens of each prompt", check=POSITIVE)
    max_tokens: int = flag(
        34,
        "steps of a run: the prefill, the last one, and those that count",
        check=lambda name, value: require_count(name, value, at_least=4),  # so that two steps count
    )
    repeats: int = flag(3, AFTER_RUN, check=POSITIVE)
    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class Executors(Settings):
    """The engine with steps in turn, and with a step launched before the one before it is read, in turn."""

    model: str = flag("tiny", MODEL)
    batch_sizes: Sequence[int] = flag((1, 8, 64), "sequences that run at once", check=SIZES, metavar="SIZES")
    prompt_len: int = flag(8, "tokens of each prompt", check=POSITIVE)
    max_tokens: int = flag(64, "new tokens of each prompt", check=POSITIVE)
    repeats: int = flag(5, AFTER_RUN, check=POSITIVE)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class Drafts(Executors):
    """The engine without drafts, and with drafts that it looks up in the text, in turn, on text that repeats itself.

    The prompts are the model's own texts, which begin with a random token: of eight times as many as are wanted, those
    that repeat themselves most.
    """

    batch_sizes: Sequence[int] = flag((8,), "sequences that run at once", check=SIZES, metavar="SIZES")
    prompt_len: int = flag(128, "tokens of each prompt", check=POSITIVE)


@dataclass(frozen=True, kw_only=True)
class Eager(Settings):
    """What it costs to start each operation of a step by itself: decodes, with a prompt beside them, and with drafts.

    A step is timed as the engine runs it, from its inputs to its tokens on the host. On a GPU it may be a graph, on a
    CPU it is compiled; beside it stands the same step with enforce_eager, in turn.
    """

    model: str = flag("tiny", MODEL)
    batch_size: int = flag(64, "sequences that decode", check=POSITIVE)
    context: int = flag(300, "cached tokens of each sequence", check=POSITIVE)
    prompt_len: int = flag(448, "tokens of the prompt beside them", check=POSITIVE)
    num_drafts: int = flag(4, "drafted tokens of each sequence", check=POSITIVE, name="--drafts")
    repeats: int = flag(20, "steps of each, after two for warm-up", check=POSITIVE)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class DecodeStep(Settings):
    """One decode step of the engine on the device: its launches, its time, and the least that these and its bytes take.

    On a GPU it is one replay of the step's graph, whose kernels are listed by the time that each takes. On a CPU the
    operations of the step's recorded graph are counted instead, and the step is timed; what its caches hold it reads
    faster than it copies, so there a step may take less than its bytes.
    """

    models: Sequence[str] = flag(
        ("tiny",), f"{MODEL}; several with commas", check=each_once, name="--model", metavar="MODELS"
    )
    batch_sizes: Sequence[int] = flag((1, 8, 64), "sequences of a step", check=SIZES, metavar="SIZES")
    context: int = flag(300, "cached tokens of each sequence", check=POSITIVE)
    repeats: int = flag(200, "replays of each, one after another", check=POSITIVE)
    dtype: str = flag("float32", WEIGHTS_AND_CACHE, choices=DTYPES)
    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class Kernels(Settings):
    """One call of the attention that the engine uses on this device, over decodes, prompts, drafts, and a mixture.

    Beside prompts stands PyTorch's own attention, which keeps no K and V for later.
    """

    device: str = device_flag()


@dataclass(frozen=True, kw_only=True)
class Serve(Settings):
    """Load on a server with OpenAI's API, as post 002 has it: requests come by the clock, and wait for no others.

    Start one first, such as `roseinfer serve tiny --port 8835`. Post 002's own load, 150 requests a second for 10
    seconds, is -X 150 -T 10. Throughput, latencies, and goodput: complete answers within --ttft-ms and --itl-ms.
    """

    rate: float = flag(10.0, "requests a second, a Poisson process", check=require_positive, short="-X")
    seconds: float = flag(10.0, "for which they come", check=require_positive, short="-T")
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
    prompt_len: Range = flag((8, 64), "of each prompt, or a range", check=require_range, metavar="TOKENS")
    output_len: Range = flag((16, 64), "of each output, or a range", check=require_range, metavar="TOKENS")
    cancelled: float = flag(0.0, "share of clients that go away within a second", metavar="SHARE")
    malformed: float = flag(0.0, "share of requests that are no request", metavar="SHARE")
    ttft_ms: float = flag(500.0, "time to first token that a good answer may take", check=require_positive)
    itl_ms: float = flag(50.0, "mean gap between tokens that a good answer may have", check=require_positive)
    stream: bool = flag(True, "ask for answers chunk by chunk")
    clients: int | None = flag(
        None,
        "a closed loop of so many, each sends when its last answer has ended",
        check=POSITIVE,
        metavar="N",
    )
    verify: str | None = flag(None, "compare every answer with this model's, offline, in float32", metavar="MODEL")
    seed: int = flag(0, "of arrivals, lengths, prompts and shares")
    contenders: Sequence[str] | None = flag(
        None,
        "start and race these servers: engine, llama-server (which wants `make peers`)",
        check=names_of(SERVERS),
        metavar="NAMES",
    )
    slots: int = flag(8, "with --contenders: requests that each server runs at a time", check=POSITIVE)
    precision: str = flag("float32", "with --contenders: of the weights", choices=("float32", "int8"))
    repeats: int = flag(3, f"with --contenders: {AFTER_RUN}", check=POSITIVE)

    @property
    def address(self) -> str:
        """Where the one server answers."""
        return self.url or f"http://127.0.0.1:{self.port}"

    def record(self) -> dict[str, Any]:
        """Return what the load was, without a key and without what the other kind of load has."""
        left_out = {*NOT_TOLD, *(OF_ONE_SERVER if self.contenders else OF_CONTENDERS)}
        return {name: value for name, value in super().record().items() if name not in left_out}
