"""What a stranger's model folder, trace or query can do to this machine: each claim of docs/trust.md, tried."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from served import copied
from tokenizers_of_all_kinds import tokenizer_of

from roseinfer.cli.main import main
from roseinfer.display.table import Table
from roseinfer.llm.chat import ChatTemplate
from roseinfer.llm.llm import LLM
from roseinfer.models import ModelLoadError, load_model, load_tokenizer, model_config
from roseinfer.paths import ROOT
from roseinfer.profiling import Trace

pytestmark = pytest.mark.slow


HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def nobody_is_asked(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *prompt: pytest.fail(f"asked: {prompt}"))


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "model").mkdir()
    return copied(tmp_path / "model", "tokenizer_config.json")


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """The file that the stranger's Python writes when it runs."""
    path = tmp_path / "was-here"
    monkeypatch.setenv("MARKER", str(path))
    return path


CODE = """
import os, pathlib
from transformers import PreTrainedTokenizerFast, GPT2Config, GPT2LMHeadModel
pathlib.Path(os.environ["MARKER"]).touch()
class Mine(PreTrainedTokenizerFast): pass
class MyConfig(GPT2Config): pass
class MyModel(GPT2LMHeadModel): pass
"""


# Weights


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "model.pt", "model.pkl"])
def test_a_pickle_is_never_read(folder, marker, name):
    (folder / "model.safetensors").unlink()
    torch.save(Payload(marker), folder / name)
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # it is one that acts
    marker.unlink()
    with pytest.raises(ModelLoadError, match="only safetensors weights are read|not a safetensors file"):
        load_model(str(folder))
    assert not marker.exists()


def test_an_index_names_files_of_its_folder_alone(folder, tmp_path):
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    for name in ("../secret.safetensors", str(tmp_path / "secret.safetensors")):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": name}}))
        with pytest.raises(ModelLoadError, match="weight_map names '.*secret.safetensors', which is no file of this"):
            load_model(str(folder))


def test_a_header_that_promises_too_much_is_refused(folder):
    (folder / "model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelLoadError, match="is truncated or not a safetensors file"):
        load_model(str(folder))
    save_file({"wte.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    with pytest.raises(ModelLoadError, match="weights are missing"):
        load_model(str(folder))


# Tokenizers and configs


@pytest.mark.parametrize("kept", ["tokenizer.json", "config.json", "both"])
def test_python_of_a_model_folder_never_runs(folder, marker, tiny, kept):
    """Neither for its weights, nor its tokenizer, nor its chat template, and without a question."""
    (folder / "mine.py").write_text(CODE)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    if kept in ("tokenizer.json", "both"):
        config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if kept in ("config.json", "both"):
        config = json.loads((folder / "config.json").read_text())
        config |= {"auto_map": {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}}
        (folder / "config.json").write_text(json.dumps(config))
    for each in (
        lambda: load_model(str(folder)),
        lambda: model_config(str(folder)),
        lambda: load_tokenizer(str(folder)),
        lambda: LLM(tiny, tokenizer=str(folder), num_kvcache_blocks=4).chat(HELLO),
    ):
        try:
            each()
        except ModelLoadError as e:
            assert "tokenizer is Python code in that folder, which is never run" in str(e)
        assert not marker.exists()


def test_a_tokenizer_that_is_python_alone_is_refused(folder, marker):
    (folder / "mine.py").write_text(CODE)
    (folder / "config.json").unlink()
    config = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelLoadError, match="its tokenizer is Python code in that folder, which is never run$"):
        load_tokenizer(str(folder))
    assert not marker.exists()


def test_every_call_of_an_auto_class_says_that_no_code_is_trusted():
    calls = [
        (path, call)
        for room in ("roseinfer", "course")
        for path in (ROOT / room).rglob("*.py")
        for call in re.findall(r"Auto\w+\.from_pretrained\([^)]*\)?[^)]*\)", path.read_text(encoding="utf-8"))
    ]
    assert calls and all("trust_remote_code=False" in call for _, call in calls), calls


# Chat templates: test_chat.py has the endless ones


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> Iterator[tuple[ChatTemplate, Path]]:
    """A process that renders templates, and the file by which one would show that it has run something."""
    path = tmp_path_factory.mktemp("chat") / "was-here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARKER", str(path))
        yield ChatTemplate(None, "none"), path


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch $MARKER') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['__builtins__'] }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
        "{{ (messages|map(attribute='__class__')|list)[0].__init__ }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as other %}",
        "{{ messages.append(1) }}",
        "{{ open('/etc/passwd').read() }}",
    ],
)
def test_a_template_reaches_neither_python_nor_files(chat, template):
    renderer, marker = chat
    jinja = "{% set out %}" + template + "{% endset %}{{ out }}ok"
    try:
        text = renderer.render(HELLO, chat_template=jinja)
    except ValueError:
        text = "refused"
    assert text in ("refused", "ok") and not marker.exists()


# Traces


EVIL = "<img src=x onerror=alert(1)></script><script>alert(2)</script>\x1b]0;title\x07\x9b31m"


def evil_trace() -> dict:
    label = {"ph": "X", "cat": "user_annotation", "name": f"roseinfer.{EVIL}", "ts": 0, "dur": 9, "pid": 1, "tid": 1}
    return {"traceEvents": [label, label | {"cat": "cpu_op", "name": f"aten::{EVIL}", "ts": 1, "args": {"x": EVIL}}]}


def test_names_in_a_trace_are_text_on_a_page_and_in_a_terminal(tmp_path, capsys):
    trace = Trace(evil_trace())
    shown = Table.of(trace.spans())._repr_mimebundle_()
    assert "<img" not in shown["text/html"] and "<script>alert" not in shown["text/html"]
    assert "\x1b" not in shown["text/plain"] and "\\x1b]0;title\\x07\\x9b31m" in shown["text/plain"]
    (tmp_path / "trace.json").write_text(json.dumps(evil_trace()))
    for arguments in ([], ["--spans"], ["--ops", f"roseinfer.{EVIL}"], ["--sql", "SELECT name, args FROM slice"]):
        assert main(["trace", str(tmp_path / "trace.json"), *arguments]) == 0
        assert not re.search(r"[\x1b\x07\x9b]", capsys.readouterr().out)
    assert main(["trace", str(tmp_path / "trace.json"), "--ops", "missing"]) != 0
    assert "\x1b" not in (line := capsys.readouterr().err) and line.startswith("error: ")


def test_a_trace_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("roseinfer.profiling.traces.chrome.MOST_BYTES", 10_000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(evil_trace()).encode() + b" " * 10**7))
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="trace.json.gz': its JSON has more than 10,000 bytes$"):
        Trace.load(path)


@pytest.mark.parametrize("content", [b"[" * 10**5, b"\x80\x04K\x01.", b"PK\x03\x04", b"\x1f\x8b\x08"], ids=range(4))
def test_a_file_that_is_no_trace_is_refused(tmp_path, content):
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(ValueError, match="not JSON|damaged gzip"):
        Trace.load(tmp_path / "trace.json")
    with zipfile.ZipFile(tmp_path / "zip.json", "w") as file:
        file.writestr("trace.json", "{}")
    with pytest.raises(ValueError, match="not JSON"):
        Trace.load(tmp_path / "zip.json")


# SQL


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_text('{file}')",
        "FROM read_blob('{file}')",
        "FROM read_csv('{file}')",
        "FROM read_json('{file}')",
        "FROM sniff_csv('{file}')",
        "FROM parquet_scan('{file}')",
        "FROM '{file}'",
        "FROM glob('{folder}/*')",
        "FROM query('FROM read_text(''{file}'')')",
        "FROM query_table('{file}')",
        "FROM 'https://example.com/x.csv'",
        "SELECT getenv('HOME')",
        "FROM duckdb_secrets()",
        "FROM sqlite_scan('{file}', 'x')",
        "COPY slice TO '{folder}/out.csv'",
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "EXPORT DATABASE '{folder}/out'",
        "ATTACH '{folder}/out.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "PRAGMA enable_external_access",
        "CALL enable_logging()",
        "SELECT 1; SELECT 2",
        "CREATE TABLE out AS FROM slice",
        "DELETE FROM slice",
        "PREPARE q AS SELECT 1",
        "FROM evil_trace",
        "EXPLAIN ANALYZE COPY slice TO '{folder}/out.csv'",
        "PIVOT slice ON name USING count(*); COPY slice TO '{folder}/out.csv'",
    ],
)
def test_a_query_reads_the_trace_alone_and_writes_nothing(tmp_path, query):
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")
    trace = Trace(evil_trace())
    with pytest.raises(ValueError):
        trace.rows(query.format(file=secret, folder=tmp_path))
    assert list(tmp_path.iterdir()) == [secret]
    assert trace.rows("SELECT COUNT(*) FROM slice")[1] == [(2,)]


# What is not stopped, as the page says


def test_a_tokenizers_regular_expression_is_ended_by_its_library(tmp_path):
    from tokenizers import Regex, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer.from_str(tokenizer_of("byte-level").to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BaseException, match="retry-limit-in-match over"):
        load_tokenizer(str(tmp_path)).encode("a" * 40 + "b")
