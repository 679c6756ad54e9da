"""config_file: the settings of a server as YAML, with the keys of post 002's server where they mean something here.

docs/serving.md has the table of them. A key that is unknown is refused by name, and so is a value that would ask for
what the engine does not do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from roseinfer.arguments import is_integer, unknown_name

from .settings import ServerSettings

Apply = Callable[["ConfigFile", Any], None]
DTYPES = {"FLOAT32": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}
# Settings of LLM that the section `engine` has, by their own names.
ENGINE_KEYS = (
    "dtype",
    "device",
    "quantization",
    "tokenizer",
    "num_kvcache_blocks",
    "kv_cache_memory_bytes",
    "gpu_memory_utilization",
    "block_size",
    "max_num_seqs",
    "max_model_len",
    "max_num_batched_tokens",
    "scheduling_policy",
    "enable_prefix_caching",
    "enforce_eager",
    "async_scheduling",
    "speculative",
    "seed",
)


@dataclass
class ConfigFile:
    """What a file says. server: fields of ServerSettings. engine: settings of LLM. unused: keys without an effect."""

    server: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    end_tokens: tuple[int, ...] = ()
    most_new_tokens: int | None = None
    vocab_size: int | None = None
    lengths: list[int] = field(default_factory=list)
    prefill_batch_size: int | None = None
    unused: list[str] = field(default_factory=list)

    def finish(self) -> None:
        """Work out the settings that several keys decide."""
        if self.lengths:
            self.engine.setdefault("max_model_len", min(self.lengths))
        if self.prefill_batch_size and self.lengths:
            tokens = self.prefill_batch_size * min(self.lengths)
            self.engine.setdefault("max_num_batched_tokens", max(tokens, self.engine.get("max_num_seqs", 0)))


def read_config(path: Path) -> ConfigFile:
    """Read a config file. Raises ValueError that names the file and the key, and FileNotFoundError."""
    import yaml

    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
    config = ConfigFile()
    try:
        for section, values in require_mapping("", found, SECTIONS).items():
            keys = SECTIONS[section]
            for key, value in require_mapping(section, values, keys).items():
                try:
                    keys[key](config, value)
                except ValueError as error:
                    raise ValueError(f"{section}.{key}: {error}") from error
        config.finish()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return config


def require_mapping(section: str, value: Any, allowed: Iterable[str]) -> dict[str, Any]:
    """Return the value if it has keys, all known; else raise ValueError. section: its name, "" for the whole file."""
    before = f"{section}." if section else ""
    if not isinstance(value, dict) or not value:
        raise ValueError(f"{section or 'the file'} must have keys of {', '.join(allowed)}, got {value!r:.100}")
    for key in value:
        if key not in allowed:
            raise ValueError(f"unknown key {unknown_name(f'{before}{key}', [before + one for one in allowed])}")
    return value


# What keys do


def into_engine(name: str) -> Apply:
    def apply(config: ConfigFile, value: Any) -> None:
        config.engine[name] = value

    return apply


def into_server(name: str, kind: type | tuple[type, ...]) -> Apply:
    def apply(config: ConfigFile, value: Any) -> None:
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise ValueError(f"must be of type {' or '.join(one.__name__ for one in kinds)}, got {value!r:.100}")
        config.server[name] = value

    return apply


def unused(why: str) -> Apply:
    """Make a key that is noted as unused. why: for docs/serving.md, whose table a test compares with it."""

    def apply(config: ConfigFile, value: Any) -> None:
        config.unused.append(why)

    return apply


def only(allowed: Any, why: str) -> Apply:
    """Make a key that is accepted only with the value that holds anyway. why: for the error."""

    def apply(config: ConfigFile, value: Any) -> None:
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise ValueError(f"must be {allowed!r}, got {value!r:.100}: {why}")

    return apply


def count_of(value: Any, at_least: int = 1) -> int:
    if not is_integer(value) or value < at_least:
        raise ValueError(f"must be an integer of at least {at_least}, got {value!r:.100}")
    return value


def largest_of(value: Any) -> int:
    """Return the largest number of a list, such as [4096], or the number itself."""
    values = value if isinstance(value, list) and value else [value]
    return max(map(count_of, values))


def decode_batch_size(config: ConfigFile, value: Any) -> None:
    config.engine["max_num_seqs"] = largest_of(value)


def prefill_batch_size(config: ConfigFile, value: Any) -> None:
    config.prefill_batch_size = largest_of(value)


def longest(config: ConfigFile, value: Any) -> None:
    config.lengths.append(largest_of(value))


def most_new_tokens(config: ConfigFile, value: Any) -> None:
    config.most_new_tokens = count_of(value)


def end_token(config: ConfigFile, value: Any) -> None:
    config.end_tokens = tuple(count_of(one, 0) for one in (value if isinstance(value, list) else [value]))


def vocab_size(config: ConfigFile, value: Any) -> None:
    config.vocab_size = count_of(value)


def model_dtype(config: ConfigFile, value: Any) -> None:
    name = str(value).removeprefix("DataType.").upper()
    if name not in DTYPES:
        raise ValueError(f"must be DataType.{', DataType.'.join(DTYPES)}, got {value!r:.100}")
    config.engine["dtype"] = DTYPES[name]


def start_device_id(config: ConfigFile, value: Any) -> None:
    number = count_of(value, 0)
    if number:
        config.engine["device"] = f"cuda:{number}"


def no_waiting(config: ConfigFile, value: Any) -> None:
    if isinstance(value, bool) or value != 0:
        raise ValueError(f"must be 0, got {value!r:.100}: a request joins the next step, no batch waits for more")


MODEL = {
    "model_name": into_server("served_model_name", str),
    "max_generate_length": most_new_tokens,
    "end_token": end_token,
    "seq_length": longest,
    "vocab_size": vocab_size,
    "prefill_batch_size": prefill_batch_size,
    "decode_batch_size": decode_batch_size,
    "zactivate_len": unused("steps are not compiled for lengths"),
    "model_type": unused("every shape is dynamic"),
    "seq_type": unused("every shape is dynamic"),
    "batch_waiting_time": no_waiting,
    "decode_batch_waiting_time": no_waiting,
    "batching_strategy": only("continuous", "the scheduler has no other way"),
    "current_index": unused("the engine counts positions by itself"),
    "page_attention": only(True, "the engine has no other KV cache"),
    "model_dtype": model_dtype,
    "pad_token_id": unused("no prompt is padded"),
    "backend": unused("the engine has one"),
    "model_cfg_path": unused("a model's folder has its config.json"),
}
SERVING = {
    "agent_ports": unused("the engine is a thread of the server"),
    "start_device_id": start_device_id,
    "server_ip": into_server("host", str),
    "server_port": into_server("port", int),
}
PA = {
    "num_blocks": into_engine("num_kvcache_blocks"),
    "block_size": into_engine("block_size"),
    "decode_seq_length": longest,
}
TOKENIZER = {
    "type": unused("a model's folder has its tokenizer.json"),
    "vocab_file": unused("a model's folder has its tokenizer.json"),
}
INPUTS = {"type": unused("a step's inputs are the engine's own")}
KINDS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "str | None": str,
    "Sequence[str] | None": list,
}
SERVER = {own.name: into_server(own.name, KINDS[str(own.type)]) for own in fields(ServerSettings)}
SECTIONS: dict[str, dict[str, Apply]] = {
    "model_config": MODEL,
    "serving_config": SERVING,
    "pa_config": PA,
    "tokenizer": TOKENIZER,
    "basic_inputs": INPUTS,
    "extra_inputs": INPUTS,
    "warmup_inputs": INPUTS,
    "engine": {name: into_engine(name) for name in ENGINE_KEYS},
    "server": SERVER,
}
