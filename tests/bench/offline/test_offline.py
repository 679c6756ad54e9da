"""The offline race: who runs, in which order, what is checked, and the tables. Peers are a fake one behind the wire."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from gguf_writing import write_gguf
from oracles import prompts_of

from roseinfer.bench.contenders import ContenderFailed
from roseinfer.bench.offline import OfflineResult, floor, offline
from roseinfer.bench.offline.contenders import entered
from roseinfer.bench.offline.floor import run_floor
from roseinfer.bench.offline.race import share_equal
from roseinfer.bench.offline.result import rows_of
from roseinfer.bench.peers import PEERS, PeerProcess, why_no_peers, write_model
from roseinfer.bench.peers.serve import read_model
from roseinfer.bench.race import Contender, Run
from roseinfer.bench.settings import Offline
from roseinfer.bench.token_check import Referee, TokensDiffer
from roseinfer.cli.main import main
from roseinfer.llm.llm import LLM
from roseinfer.models import GPT2, load_model
from roseinfer.profiling import Machine, decode_floor, prefill_floor
from roseinfer.reference import reference_generate, reference_logits
from stages import PreallocGather, VectorizedGather

IN_8_BITS = {"dtypes": [], "quantization": ["int8"]}
FAKE = Path(__file__).with_name("fake_peer.py")
RATES = Machine("a machine", "cpu", torch.float32, 1e9, 1e10, {})
race = importlib.import_module("roseinfer.bench.offline.race")
contenders = importlib.import_module("roseinfer.bench.offline.contenders")


@pytest.fixture(autouse=True)
def fake_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates that take no time to measure, and the fake as the only peer that is installed."""
    monkeypatch.setattr(race, "machine_for", lambda device, precision: RATES)
    monkeypatch.setattr(contenders, "PEERS", {"llama.cpp": FAKE})
    monkeypatch.setattr(contenders, "why_no_peers", lambda: None)
    monkeypatch.setattr(contenders, "PeerProcess", lambda *given: PeerProcess(*given, python=Path(sys.executable)))


# The race


def raced(spec: str, stages=(), **given) -> OfflineResult:
    return offline(Offline(model=spec, **{"batch_sizes": [1, 8], "device": "cpu"} | given), stages)


@pytest.fixture(scope="module")
def result(spec: str) -> OfflineResult:
    """fp32 by Hugging Face and a stage, int8 by the fake peer."""
    with pytest.MonkeyPatch.context() as patch:
        fake_surroundings.__wrapped__(patch)
        patch.setattr(contenders, "stage", only_fp32(contenders.stage))
        return raced(
            spec,
            contenders=["hf"],
            stages=[VectorizedGather],
            dtypes=["float32", "bfloat16"],
            batch_sizes=[1, 3],
            prompt_lens=[5],
            max_tokens=6,
            repeats=2,
        )


def only_fp32(make):
    def stage(stage_class, model, precision):
        if precision != "float32":
            raise ContenderFailed("fp32 alone")
        return make(stage_class, model, precision)

    return stage


def test_all_run_in_turn_in_every_cell_and_nobody_beside_another(result: OfflineResult):
    order = [(s["batch_size"], s["name"], s["precision"]) for s in result.samples]
    hf, stage, half = ("HF generate", "float32"), (VectorizedGather.name, "float32"), ("HF generate", "bfloat16")
    cell = [hf, stage, half, stage, half, hf]
    assert order == [(size, *who) for size in (1, 3) for who in cell]
    assert all(one["ended"] <= other["began"] for one, other in pairwise(result.samples))
    assert all(s["tokens"] == 6 * s["batch_size"] and s["seconds"] == s["ended"] - s["began"] for s in result.samples)


def test_who_cannot_run_is_named_once_with_the_reason(result: OfflineResult):
    assert result.left_out == {f"{VectorizedGather.name} bfloat16": "fp32 alone"}
    assert f"{VectorizedGather.name} bfloat16 left out: fp32 alone." in " ".join(result.text().split())


def test_tokens_in_fp32_are_the_references_and_others_are_compared_with_them(result: OfflineResult):
    for sample in result.samples:
        assert sample["tokens_equal"] == 1 if sample["precision"] == "float32" else 0 < sample["tokens_equal"] <= 1


def test_json_has_everything_needed_to_trust_it(result: OfflineResult):
    data = json.loads(result.to_json())
    assert data == json.loads(json.dumps(asdict(result)))
    assert data["host"].keys() == {"cpu", "cores", "torch_threads", "system"}
    assert {"python", "torch", "transformers"} <= data["versions"].keys() and "commit" in data
    assert data["machines"].keys() == {"float32", "bfloat16"} and len(data["samples"]) == 12
    assert data["arguments"]["max_tokens"] == 6 and data["arguments"]["stages"] == [VectorizedGather.name]


def test_a_run_of_one_new_token_tells_the_time_to_first_token(spec: str):
    timed = raced(spec, contenders=["engine"], batch_sizes=[2], prompt_lens=[16], max_tokens=1, repeats=1)
    [row] = timed.rows
    table, note = timed.text().split("\n\n")
    assert table.startswith("prompt of 16 tokens, float32: time to first token in ms, share of the floor")
    assert f"{1e3 * 2 / row['tokens_per_second']:,.1f} " in table
    assert "Time to first token: of a whole run" in " ".join(note.split())


def test_a_table_for_each_precision_with_a_column_a_batch_size(result: OfflineResult):
    one, two, note = result.text().split("\n\n")
    assert "5 tokens, 6 new tokens each, float32: tok/s, against HF generate in float32" in one
    assert one.splitlines()[1].split() == ["contender", "batch", "1", "batch", "3"]
    assert [line.split()[0] for line in one.splitlines()[3:]] == ["HF", VectorizedGather.name]
    assert "against HF generate in bfloat16" in two and "2 interleaved runs each" in note
    long = result.text(long=True).split("\n\n")[0].splitlines()
    assert len(long) == 2 + len(result.rows) == 2 + 6


@pytest.mark.parametrize("precision", ["int8", "float32"])
def test_a_peer_runs_in_its_own_process_and_wrong_tokens_fail_in_fp32(spec: str, small: GPT2, precision: str):
    setting = {"contenders": ["hf", "llama.cpp"], "batch_sizes": [2], "max_tokens": 5, "repeats": 1}
    if precision == "float32":
        with pytest.raises(TokensDiffer, match=r"^llama.cpp: tokens differ from the reference at index \d of sequence"):
            raced(spec, **setting)
        return
    result = raced(spec, **setting | IN_8_BITS | {"repeats": 2})
    assert [(s["name"], s["tokens_equal"]) for s in result.samples] == [("llama.cpp", 1.0)] * 2  # alone
    assert result.versions["counting"] == "1.0"
    assert [row["vs_hf"] for row in result.rows] == [None]


def test_the_engine_runs_with_just_the_blocks_that_it_needs(spec: str, monkeypatch: pytest.MonkeyPatch):
    sizes = {"batch_sizes": [1, 3], "prompt_lens": [5, 62], "max_tokens": 6, "repeats": 1}
    result = raced(spec, contenders=["engine"], quantization=["int8"], **sizes)
    order = [(s["name"], s["precision"], s["batch_size"]) for s in result.samples]
    assert order == [("engine", precision, size) for size in (1, 3) for precision in ("float32", "int8")] * 2
    assert result.left_out == {}
    made, make = [], LLM.__init__
    monkeypatch.setattr(LLM, "__init__", lambda self, *a, **k: made.append(self) or make(self, *a, **k))
    contenders.engine(Offline(model=spec, batch_sizes=[1, 3], prompt_lens=[62], max_tokens=6, device="cpu"), "float32")
    [llm] = made
    assert llm.engine.blocks.num_blocks == 3 * 2 and len(llm.engine.blocks.table.ids) == 3  # 68 tokens: two blocks each


@pytest.mark.slow
def test_who_fails_in_a_warm_up_is_left_out_of_that_cell(spec: str):
    setting = {"contenders": ["hf", "llama.cpp"], "dtypes": ["float16"], "quantization": ["int8"], "max_tokens": 3}
    setting |= {"repeats": 1}
    result = raced(spec, batch_sizes=[4, 2], **setting)
    assert result.left_out == {
        "llama.cpp float16": "llama.cpp float16 failed in load: no float16 on this CPU",
        "llama.cpp int8, prompt 8, batch 4": "llama.cpp int8 failed in run: RuntimeError: out of memory",
    }
    ran = {(s["name"], s["batch_size"]) for s in result.samples}
    assert ran == {("HF generate", 4), ("HF generate", 2), ("llama.cpp", 2)}
    *_, int8, _ = result.text().split("\n\n")
    assert int8.splitlines()[-1].split()[:2] == ["llama.cpp", "-"]
    with pytest.raises(ContenderFailed, match="no contender finished the warm-up: .*out of memory"):
        raced(spec, **setting | IN_8_BITS | {"contenders": ["llama.cpp"]}, batch_sizes=[4])


def test_nobody_can_run(spec: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(contenders, "why_no_peers", lambda: "`make peers` compiles it")
    with pytest.raises(ContenderFailed, match="^no contender can run: `make peers` compiles it$"):
        raced(spec, contenders=["llama.cpp"])


def test_a_contender_that_gives_too_few_tokens_fails(spec: str, monkeypatch: pytest.MonkeyPatch):
    def lazy(model, precision):
        return Contender(
            "HF generate", "it", {"precision": precision}, lambda work, stop: Run.of_batch([[1]], 0.0, 1.0)
        )

    monkeypatch.setattr(contenders, "hf", lazy)
    with pytest.raises(ContenderFailed, match=r"^it gave 1 outputs of \[1\] tokens, asked were 1 of \[64\]$"):
        raced(spec, contenders=["hf"], batch_sizes=[1])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"contenders": ["vllm"]}, "contenders: unknown value 'vllm'"),
        ({"contenders": []}, "contenders must name at least one, or stages, got none"),
        ({"contenders": ["hf", "hf"]}, r"contenders must be a list with each value once, got \['hf', 'hf'\]"),
        ({"stages": ["s04"]}, "stages must hold Stage classes"),
        ({"prompt_lens": [8, 190]}, "prompt_lens=190 .* is 254 tokens, allowed: max_model_len=192"),
    ],
)
def test_bad_arguments_are_refused(spec: str, changed: dict, message: str):
    with pytest.raises(ValueError, match=message):
        raced(spec, **changed)


def test_a_token_nearly_as_good_is_forgiven_to_who_may_part(small: GPT2):
    [prompt] = prompts_of([5], small.config.vocab_size)
    [right] = reference_generate(small, [prompt], 4)
    logits = reference_logits(small, prompt + right[:-1])[-1]
    best, second = logits.topk(2).values.tolist()
    other = [*right[:-1], int(logits.topk(2).indices[1])]
    gap = best - second
    referee = Referee(small, [prompt])
    referee.check("near", [other], near=1.01 * gap)
    assert referee.verdicts == {"near": "differ (sequence 0, token 3)"}
    for near in (0.0, 0.99 * gap):
        with pytest.raises(TokensDiffer, match=r"^X: tokens differ from the reference at index 3 of sequence 0"):
            referee.check("X", [other], near)
    referee.check("right", [right])  # what was forgiven is no yardstick
    referee.check("near", [right], near=gap)
    assert referee.verdicts == {"near": "differ (sequence 0, token 3)", "right": "equal"}


def test_whose_tokens_parted_in_fp32_is_told(result: OfflineResult):
    assert "Tokens in float32 equal the reference's." in result.note
    rows = [row | {"tokens_equal": 0.75} if row["name"] == VectorizedGather.name else row for row in result.rows]
    assert f"equal the reference's, but for 25.0% of {VectorizedGather.name}'s" in replace(result, rows=rows).note


# Rows


def sample(name: str, precision: str, seconds: float, tokens_equal: float = 1.0) -> dict:
    sizes = {"prompt_len": 8, "batch_size": 2, "tokens": 100}
    return {"name": name, "precision": precision, **sizes, "seconds": seconds, "tokens_equal": tokens_equal}


def test_rows_are_medians_with_their_ratios_and_the_share_of_the_floor():
    samples = [sample("HF generate", "float32", s) for s in (10.0, 10.5, 10.25)]
    samples += [sample("HF generate", "bfloat16", s) for s in (5.0, 5.0, 5.0)]
    samples += [sample("engine", "bfloat16", s, equal) for s, equal in ((2.0, 0.5), (2.5, 0.25), (2.25, 0.5))]
    samples += [sample("engine", "int8", s) for s in (10.0, 10.75, 10.25)]
    rows = {(r["name"], r["precision"]): r for r in rows_of(samples, lambda *key: 0.5)}
    half = rows["engine", "bfloat16"]
    assert (half["tokens_per_second"], half["tokens_per_second_min"], half["tokens_per_second_max"]) == (
        100 / 2.25,
        100 / 2.5,
        100 / 2.0,
    )
    assert half["vs_hf"] == pytest.approx(5 / 2.25) and half["vs_hf_float32"] == pytest.approx(10.25 / 2.25)
    assert half["verdict"] == "faster in 3 of 3 runs" and half["tokens_equal"] == 0.25
    assert half["floor_share"] == pytest.approx(0.5 / 2.25)
    int8 = rows["engine", "int8"]
    assert int8["vs_hf"] == int8["vs_hf_float32"] == 1 and int8["verdict"] == "ranges overlap"
    assert rows["HF generate", "float32"]["verdict"] is None


def test_the_engine_is_set_against_the_best_peer(result: OfflineResult):
    samples = [sample("engine", "float32", 2.0), sample("CTranslate2", "float32", 4.0)]
    samples += [sample("llama.cpp", "float32", 3.0)]
    sizes = {"batch_sizes": [2, 3], "prompt_lens": [8], "precisions": ["float32"]}
    rows = rows_of(samples, lambda *key: 0.5)
    table = replace(result, arguments=result.arguments | sizes, rows=rows).text().split("\n\n")[0].splitlines()
    assert table[3].split() == ["engine", "50", "25%", "-"]
    assert table[-1].split() == ["engine", "/", "best", "peer", "llama.cpp", "×1.50"]


def test_the_floor_of_a_run_is_its_prefill_and_every_decode_step(small: GPT2):
    config = small.config
    whole = run_floor(config, RATES, 2, 5, 4, 2, torch.bfloat16)
    steps = [decode_floor(config, [5 + i] * 2, torch.bfloat16, RATES).seconds for i in (1, 2, 3)]
    assert whole == pytest.approx(prefill_floor(config, [5, 5], torch.bfloat16, RATES).seconds + sum(steps))
    slow = replace(RATES, read_bytes_per_s=1.0)
    step = decode_floor(config, [6] * 2, torch.float32)
    start = prefill_floor(config, [5, 5], torch.float32)
    expected = sum(f.weight_bytes / 4 + f.kv_bytes for f in (start, step))
    assert run_floor(config, slow, 2, 5, 2, 1, torch.float32) == pytest.approx(expected)
    expected = sum(f.weight_bytes / 8 + f.kv_bytes for f in (start, step))
    assert run_floor(config, slow, 2, 5, 2, 0.5, torch.float32) == pytest.approx(expected)


def test_the_rate_of_8_bits_is_that_of_the_faster_product(monkeypatch):
    """PyTorch's, or the engine's own: a floor that only knew one could be gone below with the other."""
    seconds = iter([2.0, 1.0])
    monkeypatch.setattr(floor, "passes", lambda way, *_: [way() is None or next(seconds)])
    assert floor._int8_rates(64, "cpu") == [2 * 64**3 / 2, 2 * 64**3]


def test_share_equal():
    assert share_equal([[1, 2], [3, 4]], [[1, 2], [4, 4]]) == 0.75


# Peers


def test_what_peers_read_is_the_model(small: GPT2, tmp_path: Path):
    write_model(small.to(torch.float32), tmp_path)
    shape, weights = read_model(tmp_path)
    assert shape == json.loads(json.dumps(asdict(small.config)))
    assert weights.keys() == small.state_dict().keys()
    assert all(torch.equal(torch.from_numpy(weights[name]), w) for name, w in small.state_dict().items())


def test_peers_are_given_gpt2_alone():
    with entered(Offline(model="random:tiny-llama", contenders=["llama.cpp"], device="cpu")) as (running, left_out):
        assert running == []
        assert left_out == {"llama.cpp float32": "peers are given GPT-2 alone, not llama"}


@pytest.mark.slow  # it compiles a step for weights of a kind that no quick test has
def test_a_gguf_file_is_run_as_it_is_stored_by_the_engine_and_by_llama_cpp(tmp_path: Path):
    model = load_model("random:tiny-llama")
    path = write_gguf(model, tmp_path / "model.gguf", "Q8_0")
    setting = {"dtypes": [], "quantization": ["stored"], "batch_sizes": [2], "max_tokens": 3, "repeats": 1}
    raced_so = raced(str(path), contenders=["engine", "llama.cpp"], **setting)
    assert [row["name"] for row in raced_so.rows] == ["engine", "llama.cpp"]
    theirs = [sample["tokens_equal"] for sample in raced_so.samples]
    assert raced_so.versions["counting"] == "1.0" and theirs[0] == 1 > theirs[1], "the fake counts on"
    assert floor.bytes_of_value("stored", str(path)) == (32 + 2) / 32, "32 values share a scale of 2 bytes"
    with pytest.raises(ValueError, match=r"quantization 'stored' is for the model of a GGUF file, got 'tiny'"):
        raced("tiny", contenders=["engine"], **setting)
    with pytest.raises(ValueError, match="quantization 'stored' runs on a CPU, got device 'cuda'"):
        raced(str(path), contenders=["engine"], **setting, device="cuda")


def test_a_peer_has_as_many_threads_and_no_setting_of_ours(small: GPT2, tmp_path: Path, monkeypatch):
    write_model(small, tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    with PeerProcess("X", FAKE, tmp_path, "int8", 3, Path(sys.executable)) as peer:
        assert peer.versions == {"counting": "1.0", "threads": "3", "left": ""}


def test_a_peer_that_dies_is_told_by_its_last_words(small: GPT2, tmp_path: Path):
    write_model(small, tmp_path)
    with pytest.raises(ContenderFailed, match="^X failed in load: it ended with status 1: a library "):
        PeerProcess("X", FAKE, tmp_path, "bfloat16", 1, Path(sys.executable))
    with PeerProcess("X", FAKE, tmp_path, "int8", 1, Path(sys.executable)) as peer:
        outputs, began, ended = peer.run([[5, 7]], 3)
        assert outputs == [[8, 9, 10]] and began <= ended
        with pytest.raises(ContenderFailed, match="^X failed in run: RuntimeError: out of memory$"):
            peer.run([[1]] * 4, 3)
        assert peer.run([[1]], 1)[0] == [[2]]  # and goes on
        peer.process.kill()
        with pytest.raises(ContenderFailed, match="^X failed in run: it ended with status -9: "):
            peer.run([[1]], 1)
    peer.close()


if why_no_peers() is None:  # `make peers` has been run here

    @pytest.mark.parametrize("name", PEERS)
    def test_a_peers_greedy_tokens_are_the_references(name: str, small: GPT2, tmp_path: Path):
        write_model(small, tmp_path)
        same, mixed = ([*prompts_of(lengths, small.config.vocab_size)] for lengths in ([9, 9, 9], [3, 9, 1]))
        with PeerProcess(name, PEERS[name], tmp_path, "float32", 1) as peer:
            for prompts in (same, same[:1], same):
                assert peer.run(prompts, 40)[0] == reference_generate(small, prompts, 40)
            if name == "llama.cpp":
                assert peer.run(mixed, 40)[0] == reference_generate(small, mixed, 40)
            else:
                with pytest.raises(ContenderFailed, match="CTranslate2 is given prompts of one length alone$"):
                    peer.run(mixed, 40)

    def test_llama_cpp_reads_a_gguf_file_itself(tmp_path: Path):
        model = load_model("random:tiny-llama")
        path, prompts = write_gguf(model, tmp_path / "model.gguf"), prompts_of([3, 9, 1], model.config.vocab_size)
        with PeerProcess("llama.cpp", PEERS["llama.cpp"], path, "stored", 1) as peer:
            outputs, _, _ = peer.run(prompts, 20)
        assert share_equal(outputs, reference_generate(model, prompts, 20)) >= 0.75, "K and V are in 16 bits"

    def test_llama_cpp_runs_in_4_bits_and_ctranslate2_says_that_it_does_not(tiny: GPT2, tmp_path: Path):
        write_model(tiny, tmp_path)
        with PeerProcess("llama.cpp", PEERS["llama.cpp"], tmp_path, "int4", 1) as peer:
            assert len(peer.run([[1, 2, 3]], 2)[0][0]) == 2
        with pytest.raises(ContenderFailed, match="CTranslate2 has no int4 on this CPU, only "):
            PeerProcess("CTranslate2", PEERS["CTranslate2"], tmp_path, "int4", 1)

    @pytest.mark.parametrize("name", PEERS)
    def test_a_peers_weights_in_8_bits_say_nearly_the_same(name: str, tiny: GPT2, tmp_path: Path):
        """The first token behind each of 16 prompts: an argmax of its own flips here and there, no more."""
        write_model(tiny, tmp_path)
        prompts = prompts_of([8] * 16, tiny.config.vocab_size)
        with PeerProcess(name, PEERS[name], tmp_path, "int8", 1) as peer:
            outputs, _, _ = peer.run(prompts, 1)
        assert share_equal(outputs, reference_generate(tiny, prompts, 1)) >= 0.75


# The command


def test_the_command_prints_tables_and_writes_json(spec: str, tmp_path: Path, capsys):
    out = tmp_path / "offline.json"
    sizes = "--batch-sizes 1,2 --max-tokens 3 --repeats 1 --device cpu"
    who = ["--model", spec, "--contenders", "hf,s02"]
    assert main(["bench", "offline", *who, "--output", str(out), *sizes.split()]) == 0
    shown, said = capsys.readouterr()
    assert said == "" and PreallocGather.name in shown and "batch 2" in shown
    assert len(json.loads(out.read_text())["samples"]) == 4
