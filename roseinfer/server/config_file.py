"""config_file: the settings of a server as YAML, with the keys of post 002's server where they mean something here.

docs/serving.md has the table of them. A key that is unknown is refused by name, and so is a value that would ask for
what the engine does not do.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from roseinfer.arguments import is_integer, unknown_name
from roseinfer.llm.llm import LLM

from .settings import ServerSettings

Apply = Callable[["ConfigFile", Any], None]
DTYPES = {"FLOAT32": "float32", "FLOAT16": "float16", "BFLOAT16": "bfloat16"}


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


def into(part: str, name: str, read: Callable[[Any], Any] = lambda value: value) -> Apply:
    """Make a key of a setting. part: "server" or "engine". read: checks a value, and returns what the setting gets."""

    def apply(config: ConfigFile, value: Any) -> None:
        getattr(config, part)[name] = read(value)

    return apply


def own(name: str, read: Callable[[Any], Any]) -> Apply:
    """Make a key of a field of ConfigFile."""
    return lambda config, value: setattr(config, name, read(value))


def unused(why: str) -> Apply:
    """Make a key that is noted as unused. why: for docs/serving.md, whose table a test compares with it."""
    return lambda config, value: config.unused.append(why)


def only(allowed: Any, why: str) -> Apply:
    """Make a key that is accepted only with the value that holds anyway. why: for the error."""

    def apply(config: ConfigFile, value: Any) -> None:
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            raise ValueError(f"must be {allowed!r}, got {value!r:.100}: {why}")

    return apply


def longest(config: ConfigFile, value: Any) -> None:
    config.lengths.append(largest_of(value))


def start_device_id(config: ConfigFile, value: Any) -> None:
    number = count_of(value, 0)
    if number:
        config.engine["device"] = f"cuda:{number}"


# How values are read


def of_type(*kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if isinstance(value, bool) != (bool in kinds) or not isinstance(value, kinds):
            raise ValueError(f"must be of type {' or '.join(one.__name__ for one in kinds)}, got {value!r:.100}")
        return value

    return read


def count_of(value: Any, at_least: int = 1) -> int:
    if not is_integer(value) or value < at_least:
        raise ValueError(f"must be an integer of at least {at_least}, got {value!r:.100}")
    return value


def largest_of(value: Any) -> int:
    """Return the largest number of a list, such as [4096], or the number itself."""
    values = value if isinstance(value, list) and value else [value]
    return max(map(count_of, values))


def tokens_of(value: Any) -> tuple[int, ...]:
    return tuple(count_of(one, 0) for one in (value if isinstance(value, list) else [value]))


def dtype_of(value: Any) -> str:
    name = str(value).removeprefix("DataType.").upper()
    if name not in DTYPES:
        raise ValueError(f"must be DataType.{', DataType.'.join(DTYPES)}, got {value!r:.100}")
    return DTYPES[name]


JOINS = "a request joins the next step, no batch waits for more"
MODEL = {
    "model_name": into("server", "served_model_name", of_type(str)),
    "max_generate_length": own("most_new_tokens", count_of),
    "end_token": own("end_tokens", tokens_of),
    "seq_length": longest,
    "vocab_size": own("vocab_size", count_of),
    "prefill_batch_size": own("prefill_batch_size", largest_of),
    "decode_batch_size": into("engine", "max_num_seqs", largest_of),
    "zactivate_len": unused("steps are not compiled for lengths"),
    "model_type": unused("every shape is dynamic"),
    "seq_type": unused("every shape is dynamic"),
    "batch_waiting_time": only(0, JOINS),
    "decode_batch_waiting_time": only(0, JOINS),
    "batching_strategy": only("continuous", "the scheduler has no other way"),
    "current_index": unused("the engine counts positions by itself"),
    "page_attention": only(True, "the engine has no other KV cache"),
    "model_dtype": into("engine", "dtype", dtype_of),
    "pad_token_id": unused("no prompt is padded"),
    "backend": unused("the engine has one"),
    "model_cfg_path": unused("a model's folder has its config.json"),
}
SERVING = {
    "agent_ports": unused("the engine is a thread of the server"),
    "start_device_id": start_device_id,
    "server_ip": into("server", "host", of_type(str)),
    "server_port": into("server", "port", of_type(int)),
}
PA = {
    "num_blocks": into("engine", "num_kvcache_blocks"),
    "block_size": into("engine", "block_size"),
    "decode_seq_length": longest,
}
TOKENIZER = {
    "type": unused("a model's folder has its tokenizer.json"),
    "vocab_file": unused("a model's folder has its tokenizer.json"),
}
INPUTS = {"type": unused("a step's inputs are the engine's own")}
KINDS = {
    "bool": of_type(bool),
    "int": of_type(int),
    "float": of_type(int, float),
    "str": of_type(str),
    "str | None": of_type(str),
    "Sequence[str] | None": of_type(list),
}
SECTIONS: dict[str, dict[str, Apply]] = {
    "model_config": MODEL,
    "serving_config": SERVING,
    "pa_config": PA,
    "tokenizer": TOKENIZER,
    "basic_inputs": INPUTS,
    "extra_inputs": INPUTS,
    "warmup_inputs": INPUTS,
    "engine": {name: into("engine", name) for name in inspect.signature(LLM).parameters if name != "model"},
    "server": {one.name: into("server", one.name, KINDS[str(one.type)]) for one in fields(ServerSettings)},
}
